package mapping

import (
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// canonical writes n in one way only: every operation in parentheses,
// every path, number and text in its canonical form.
func (c *exprCompiler) canonical(b *strings.Builder, n ast.Node) {
	switch n := n.(type) {
	case *ast.UnaryNode:
		op := n.Operator
		if op == "!" {
			op = "not"
		}
		b.WriteString("(" + op + " ")
		c.canonical(b, n.Node)
		b.WriteByte(')')
	case *ast.BinaryNode:
		op := n.Operator
		switch op {
		case "&&":
			op = "and"
		case "||":
			op = "or"
		}
		b.WriteByte('(')
		c.canonical(b, n.Left)
		b.WriteString(" " + op + " ")
		c.canonical(b, n.Right)
		b.WriteByte(')')
	case *ast.ConditionalNode:
		c.canonicalList(b, "(if ", []ast.Node{n.Cond, n.Exp1, n.Exp2}, ")")
	case *ast.CallNode:
		c.canonicalList(b, callee(n)+"(", n.Arguments, ")")
	case *ast.ArrayNode:
		c.canonicalList(b, "[", n.Nodes, "]")
	case *ast.IntegerNode, *ast.FloatNode:
		if lit, _ := c.number(n, ""); lit != nil {
			v, _ := lit.eval(nil)
			b.WriteString(v.Num.String())
		}
	case *ast.StringNode:
		b.WriteString(strconv.Quote(n.Value))
	case *ast.IdentifierNode, *ast.MemberNode:
		c.canonicalPath(b, n)
	default:
		b.WriteString(n.String())
	}
}

func (c *exprCompiler) canonicalList(b *strings.Builder, open string, nodes []ast.Node, end string) {
	b.WriteString(open)
	for i, n := range nodes {
		if i > 0 {
			b.WriteString(", ")
		}
		c.canonical(b, n)
	}
	b.WriteString(end)
}

func (c *exprCompiler) canonicalPath(b *strings.Builder, n ast.Node) {
	if id, ok := n.(*ast.IdentifierNode); ok && id.Value == "null" {
		b.WriteString("nil")
		return
	}
	if m, ok := n.(*ast.MemberNode); ok {
		if call, ok := m.Node.(*ast.CallNode); ok {
			c.canonical(b, call)
			b.WriteString("[" + m.Property.String() + "]")
			return
		}
	}
	p, bad := pathOf(n)
	if bad != nil {
		b.WriteString(n.String())
		return
	}
	b.WriteString(p.String())
}
