package mapping

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/formats"
)

// maxExprText bounds the text of an expression, in bytes.
const maxExprText = 4 << 10

// pathSet gathers the paths that the expressions of one stream read; a path's
// place in it is its slot in the fields.
type pathSet struct {
	paths []formats.Path
	slots map[string]int
	// each is the array whose elements are the stream's events; nil: there is
	// none, and no parent to read from.
	each *formats.Path
}

func (p *pathSet) slot(path formats.Path) int {
	key := path.String()
	if slot, ok := p.slots[key]; ok {
		return slot
	}
	if p.slots == nil {
		p.slots = map[string]int{}
	}
	slot := len(p.paths)
	p.paths = append(p.paths, path)
	p.slots[key] = slot
	return slot
}

// exprFault is a fault in an expression's text.
type exprFault struct {
	at      int // runes from the start of the text
	message string
	advice  string
}

// exprCompiler compiles one expression. It goes on after a fault, with a node
// in the faulty one's place, to find the others.
type exprCompiler struct {
	source []rune
	paths  *pathSet
	faults []exprFault
}

// compileExpr compiles text over the paths of a stream. It returns an
// expression only without faults.
func compileExpr(text string, paths *pathSet) (*Expr, []exprFault) {
	if len(text) > maxExprText {
		return nil, []exprFault{{message: fmt.Sprintf("the expression is longer than %d bytes", maxExprText)}}
	}
	if !utf8.ValidString(text) {
		return nil, []exprFault{{message: "the expression is not UTF-8"}}
	}
	tree, fault := parseExpr(text)
	if fault != nil {
		return nil, []exprFault{*fault}
	}
	c := &exprCompiler{source: []rune(text), paths: paths}
	root, static := c.compile(tree)
	if len(c.faults) > 0 {
		return nil, c.faults
	}
	e := &Expr{text: text, slot: -1, root: root, static: static}
	var b strings.Builder
	c.canonical(&b, tree)
	e.canon = b.String()
	if f, ok := root.(fieldNode); ok {
		e.slot = f.slot
	}
	return e, nil
}

// parseExpr runs the parser of expr with all its functions switched off: they
// are loops, clocks and floats, and every function that there is is ours.
func parseExpr(text string) (root ast.Node, fault *exprFault) {
	config := &conf.Config{
		MaxNodes:          2000,
		DisableIfOperator: true,
		Functions:         conf.FunctionsTable{},
		Disabled:          map[string]bool{},
	}
	for _, f := range builtin.Builtins {
		config.Disabled[f.Name] = true
		// The parser takes a function of the program's for an ordinary call.
		config.Functions[f.Name] = f
	}
	defer func() {
		// The parser is a library's: its bugs are faults of the text here.
		if r := recover(); r != nil {
			root, fault = nil, &exprFault{message: "the expression cannot be parsed"}
		}
	}()
	tree, err := parser.ParseWithConfig(text, config)
	if err != nil {
		bad, ok := errors.AsType[*file.Error](err)
		if !ok {
			return nil, &exprFault{message: "not an expression: " + err.Error()}
		}
		message, advice := explainSyntax(text, bad.Message)
		return nil, &exprFault{at: bad.From, message: "not an expression: " + message, advice: advice}
	}
	return tree.Node, nil
}

// parserToken is how the parser writes a token that it did not expect.
var parserToken = regexp.MustCompile(`^unexpected token [A-Za-z]+\((".*")\)$`)

// explainSyntax says in a user's words what the parser has against text.
func explainSyntax(text, message string) (explained, advice string) {
	switch {
	case strings.TrimSpace(text) == "":
		return "it is empty", "write a field or an expression"
	case strings.Contains(message, "token EOF"):
		return "it ends too early", ""
	case strings.Contains(message, "cannot be mixed"):
		return "?? beside another operator", "put parentheses around the part with ??"
	case strings.Contains(message, "value out of range"):
		return "the number is too large for a literal", `write number("...")`
	case strings.Contains(message, `Operator("=")`):
		advice = "compare with =="
	}
	if m := parserToken.FindStringSubmatch(message); m != nil {
		message = "unexpected " + m[1]
	}
	return message, advice
}

func (c *exprCompiler) fault(n ast.Node, advice, format string, args ...any) (node, exprType) {
	c.faults = append(c.faults, exprFault{at: c.start(n), message: fmt.Sprintf(format, args...), advice: advice})
	return constNode{}, typeAny
}

// start gives where a node's text begins; the parser keeps an operator's place
// for the operation and a member's name for the member.
func (c *exprCompiler) start(n ast.Node) int {
	switch n := n.(type) {
	case *ast.MemberNode:
		return c.start(n.Node)
	case *ast.ConditionalNode:
		return c.start(n.Cond)
	}
	return n.Location().From
}

func (c *exprCompiler) compile(n ast.Node) (node, exprType) {
	switch n := n.(type) {
	case *ast.NilNode:
		return constNode{event.Scalar{Type: event.ScalarNull}}, typeNull
	case *ast.BoolNode:
		return constNode{boolScalar(n.Value)}, typeBool
	case *ast.StringNode:
		return constNode{textScalar(n.Value)}, typeText
	case *ast.IntegerNode, *ast.FloatNode:
		return c.number(n, "")
	case *ast.IdentifierNode, *ast.MemberNode:
		return c.path(n)
	case *ast.UnaryNode:
		return c.unary(n)
	case *ast.BinaryNode:
		return c.binary(n)
	case *ast.ConditionalNode:
		return c.choose(n)
	case *ast.CallNode:
		return c.call(n)
	case *ast.ArrayNode:
		return c.fault(n, `write x in ["a", "b"]`, "a list can only stand after in")
	case *ast.ChainNode:
		return c.fault(n, "write a.b: a path that leads nowhere is absent, not an error", "?. is not needed here")
	case *ast.SliceNode:
		return c.fault(n, "take one element, as in tags[0]", "slices are not supported")
	case nil:
		c.faults = append(c.faults, exprFault{message: "the expression is empty"})
		return constNode{}, typeAny
	}
	return c.fault(n, "", "this part of the expression is not supported")
}

// number reads a number literal from the text itself: the parser has made a
// float of it.
func (c *exprCompiler) number(n ast.Node, sign string) (node, exprType) {
	loc := n.Location()
	if loc.From < 0 || loc.To > len(c.source) || loc.From >= loc.To {
		return c.fault(n, "", "number without a place in the text")
	}
	text := string(c.source[loc.From:loc.To])
	if strings.ContainsAny(text, "_xXoObB") || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ".") {
		return c.fault(n, "write it in decimal digits, as in 1000 or 0.5", "%s is not a number here", text)
	}
	d, err := event.ParseDecimal(sign + text)
	if err != nil {
		return c.fault(n, "", "%s is not a number: %v", text, err)
	}
	return constNode{event.Scalar{Type: event.ScalarNumber, Num: d}}, typeNumber
}

// path compiles a field: names, members and indexes.
func (c *exprCompiler) path(n ast.Node) (node, exprType) {
	if id, ok := n.(*ast.IdentifierNode); ok && id.Value == "null" {
		return constNode{event.Scalar{Type: event.ScalarNull}}, typeNull
	}
	if m, ok := n.(*ast.MemberNode); ok {
		if call, ok := m.Node.(*ast.CallNode); ok {
			return c.element(m, call)
		}
	}
	p, bad := pathOf(n)
	switch {
	case bad != nil:
		return c.fault(bad.node, bad.advice, "%s", bad.message)
	case p.Parent && c.paths.each == nil:
		return c.fault(n, "leave $parent out, or declare each", "%s is for streams with each", formats.ParentMark)
	case p.Parent && p.Within(*c.paths.each):
		return c.fault(n, "the event is one element: name its fields without $parent", "this leads into %s, whose elements are the events", c.paths.each)
	}
	return fieldNode{c.paths.slot(p)}, typeAny
}

type badPath struct {
	node            ast.Node
	message, advice string
}

// pathOf gives the path that a chain of members writes.
func pathOf(n ast.Node) (formats.Path, *badPath) {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		switch {
		case n.Value == "$":
			return formats.Path{}, nil
		case n.Value == formats.ParentMark:
			return formats.Path{Parent: true}, nil
		case strings.HasPrefix(n.Value, "$"):
			return formats.Path{}, &badPath{n, "unknown name " + n.Value,
				`$["name"] is a field with an odd name, $parent the record around an array's element`}
		}
		return formats.Path{Steps: []formats.Step{{Name: n.Value}}}, nil
	case *ast.MemberNode:
		p, bad := pathOf(n.Node)
		if bad != nil {
			return p, bad
		}
		switch prop := n.Property.(type) {
		case *ast.StringNode:
			p.Steps = append(p.Steps, formats.Step{Name: prop.Value})
			return p, nil
		case *ast.IntegerNode:
			if prop.Value >= 0 && prop.Value <= 1<<31-1 {
				p.Steps = append(p.Steps, formats.Step{Index: prop.Value, IsIndex: true})
				return p, nil
			}
		}
		return p, &badPath{n.Property, "the index of a field must be a number or a text, as it stands", "write a[0] or a[\"name\"]"}
	}
	return formats.Path{}, &badPath{n, "a member can only be taken of a field", "write the path to the field, as in a.b[0].c"}
}

// element compiles split(...)[2].
func (c *exprCompiler) element(m *ast.MemberNode, call *ast.CallNode) (node, exprType) {
	index, ok := m.Property.(*ast.IntegerNode)
	if !ok || callee(call) != "split" {
		return c.fault(m, "", "only a piece of split(...) can be taken by its index, as in split(a, \",\")[0]")
	}
	of, sep := c.split(call)
	return pieceNode{of: of, sep: sep, index: index.Value}, typeText
}

// split compiles the arguments of split(of, "sep").
func (c *exprCompiler) split(call *ast.CallNode) (of node, sep string) {
	if len(call.Arguments) != 2 {
		of, _ = c.fault(call, `write split(text, ", ")`, "split takes 2 arguments, these are %d", len(call.Arguments))
		return of, ","
	}
	of = c.want(call.Arguments[0], typeText, "split")
	lit, ok := call.Arguments[1].(*ast.StringNode)
	if !ok || lit.Value == "" {
		c.fault(call.Arguments[1], `write split(text, ", ")`, "what split splits at must be a text in quotes, and not empty")
		return of, ","
	}
	return of, lit.Value
}

// want compiles n and refuses it where its type is visibly another one.
func (c *exprCompiler) want(n ast.Node, want exprType, who string) node {
	compiled, t := c.compile(n)
	if t != want && t != typeAny && t != typeNull {
		c.fault(n, "", "%s wants a %s, this is a %s", who, want, t)
	}
	return compiled
}

func (c *exprCompiler) choose(n *ast.ConditionalNode) (node, exprType) {
	cond := c.want(n.Cond, typeBool, "?:")
	yes, a := c.compile(n.Exp1)
	no, b := c.compile(n.Exp2)
	return chooseNode{cond: cond, yes: yes, no: no}, joinTypes(a, b)
}

// joinTypes is the type of a result that is one of two.
func joinTypes(a, b exprType) exprType {
	switch {
	case a == b || b == typeNull:
		return a
	case a == typeNull:
		return b
	}
	return typeAny
}

func (c *exprCompiler) unary(n *ast.UnaryNode) (node, exprType) {
	switch n.Operator {
	case "not", "!":
		return notNode{c.want(n.Node, typeBool, "not")}, typeBool
	case "-":
		switch n.Node.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			return c.number(n.Node, "-")
		}
		zero := constNode{event.Scalar{Type: event.ScalarNumber}}
		return arithNode{op: "-", left: zero, right: c.want(n.Node, typeNumber, "-")}, typeNumber
	}
	return c.fault(n, "leave it out", "the sign %s is not supported", n.Operator)
}

func (c *exprCompiler) binary(n *ast.BinaryNode) (node, exprType) {
	switch op := n.Operator; op {
	case "and", "&&", "or", "||":
		or := op == "or" || op == "||"
		return logicNode{or: or, left: c.want(n.Left, typeBool, op), right: c.want(n.Right, typeBool, op)}, typeBool
	case "==", "!=", "<", "<=", ">", ">=":
		return c.compare(n)
	case "+", "-", "*":
		return c.arith(n)
	case "??":
		left, a := c.compile(n.Left)
		right, b := c.compile(n.Right)
		return coalesceNode{left: left, right: right}, joinTypes(a, b)
	case "in":
		return c.in(n)
	case "contains", "startsWith", "endsWith":
		return matchNode{op: op, left: c.want(n.Left, typeText, op), right: c.want(n.Right, typeText, op)}, typeBool
	case "matches":
		return c.matches(n)
	case "/", "%", "**", "^":
		return c.fault(n, "numbers are exact, so there are + - * only", "the operator %s is not supported", op)
	default:
		return c.fault(n, "", "the operator %s is not supported", op)
	}
}

func (c *exprCompiler) compare(n *ast.BinaryNode) (node, exprType) {
	for _, side := range [...]ast.Node{n.Left, n.Right} {
		if u, ok := side.(*ast.UnaryNode); ok && (u.Operator == "not" || u.Operator == "!") {
			return c.fault(u, "write not (a == b)", "not binds more tightly than %s, so this compares the result of not", n.Operator)
		}
	}
	left, a := c.compile(n.Left)
	right, b := c.compile(n.Right)
	fixed := func(t exprType) bool { return t != typeAny && t != typeNull }
	switch {
	case fixed(a) && fixed(b) && a != b:
		return c.fault(n, "compare values of one type; text(x) and number(x) convert", "a %s is never %s a %s", a, n.Operator, b)
	case n.Operator == "==" || n.Operator == "!=":
		return equality(left, right, n.Operator == "!="), typeBool
	case a == typeBool || b == typeBool:
		return c.fault(n, "use == or !=", "booleans have no order")
	}
	return orderNode{op: n.Operator, left: left, right: right}, typeBool
}

// equality picks the short way for field == "text".
func equality(left, right node, not bool) node {
	if _, ok := left.(constNode); ok {
		left, right = right, left
	}
	field, isField := left.(fieldNode)
	lit, isConst := right.(constNode)
	if isField && isConst && lit.value.Type == event.ScalarText {
		return textEqualsNode{slot: field.slot, text: lit.value.Text, not: not}
	}
	return equalNode{not: not, left: left, right: right}
}

func (c *exprCompiler) arith(n *ast.BinaryNode) (node, exprType) {
	left, a := c.compile(n.Left)
	right, b := c.compile(n.Right)
	t := joinTypes(a, b)
	switch {
	case a == typeBool || b == typeBool:
		return c.fault(n, "", "cannot calculate with a boolean")
	case n.Operator != "+" && (a == typeText || b == typeText):
		return c.fault(n, "number(x) makes a number of a text", "cannot calculate a text %s a number", n.Operator)
	case a == typeText && b == typeNumber || a == typeNumber && b == typeText:
		return c.fault(n, "text(x) and number(x) convert", "cannot add a %s and a %s", a, b)
	case n.Operator != "+":
		t = typeNumber
	}
	return arithNode{op: n.Operator, left: left, right: right}, t
}

func (c *exprCompiler) in(n *ast.BinaryNode) (node, exprType) {
	item, t := c.compile(n.Left)
	switch right := n.Right.(type) {
	case *ast.CallNode:
		if callee(right) == "split" {
			of, sep := c.split(right)
			return inPiecesNode{item: item, of: of, sep: sep}, typeBool
		}
	case *ast.ArrayNode:
		list := make([]node, 0, len(right.Nodes))
		for _, e := range right.Nodes {
			compiled, et := c.compile(e)
			if t != typeAny && et != typeAny && t != typeNull && et != typeNull && t != et {
				c.fault(e, "", "a %s is never in a list with a %s", t, et)
			}
			list = append(list, compiled)
		}
		return inNode{of: item, list: list}, typeBool
	}
	return c.fault(n.Right, `write x in ["a", "b"] or x in split(y, ",")`, "in wants a list on its right side")
}

func (c *exprCompiler) matches(n *ast.BinaryNode) (node, exprType) {
	of := c.want(n.Left, typeText, "matches")
	lit, ok := n.Right.(*ast.StringNode)
	if !ok {
		return c.fault(n.Right, `write x matches "^a[0-9]+$"`, "the pattern of matches must be a text in quotes")
	}
	pattern, err := regexp.Compile(lit.Value)
	if err != nil {
		return c.fault(n.Right, "see https://github.com/google/re2/wiki/Syntax", "%v", err)
	}
	return patternNode{of: of, pattern: pattern}, typeBool
}

func callee(call *ast.CallNode) string {
	if id, ok := call.Callee.(*ast.IdentifierNode); ok {
		return id.Value
	}
	return ""
}

// exprFunctions are the functions of expressions.
func exprFunctions() []string {
	return []string{"lower", "upper", "trim", "len", "split", "first", "last", "text", "number"}
}

func (c *exprCompiler) call(n *ast.CallNode) (node, exprType) {
	name := callee(n)
	switch name {
	case "lower", "upper", "trim", "len", "first", "last", "text", "number":
		if len(n.Arguments) != 1 {
			return c.fault(n, "", "%s takes 1 argument, these are %d", name, len(n.Arguments))
		}
		return c.callOne(n, name, n.Arguments[0])
	case "split":
		c.split(n)
		return c.fault(n, "take one piece: first(split(...)), last(split(...)) or split(...)[1]", "split gives a list, and a list is not a value")
	case "":
		return c.fault(n, "", "fields have no methods")
	case "contains", "startsWith", "endsWith", "matches":
		return c.fault(n, "write a "+name+" b", "%s is an operator", name)
	case "count", "sum", "min", "max", "avg":
		return c.fault(n, "aggregate functions stand under values of an aggregate, around the whole expression", "%s cannot stand here", name)
	}
	advice := suggest(name, exprFunctions())
	if advice == "" {
		advice = "the functions are " + strings.Join(exprFunctions(), ", ")
	}
	return c.fault(n, advice, "unknown function %s", name)
}

func (c *exprCompiler) callOne(n *ast.CallNode, name string, arg ast.Node) (node, exprType) {
	if inner, ok := arg.(*ast.CallNode); ok && callee(inner) == "split" {
		switch name {
		case "first", "last":
			of, sep := c.split(inner)
			return pieceNode{of: of, sep: sep, last: name == "last"}, typeText
		case "len":
			of, sep := c.split(inner)
			return piecesNode{of: of, sep: sep}, typeNumber
		}
	}
	switch name {
	case "lower":
		return textNode{name, lowerText, c.want(arg, typeText, name)}, typeText
	case "upper":
		return textNode{name, upperText, c.want(arg, typeText, name)}, typeText
	case "trim":
		return textNode{name, trimText, c.want(arg, typeText, name)}, typeText
	case "len":
		return textNode{name, lenText, c.want(arg, typeText, name)}, typeNumber
	case "text":
		of, _ := c.compile(arg)
		return toTextNode{of}, typeText
	case "number":
		of, _ := c.compile(arg)
		return toNumberNode{of}, typeNumber
	}
	return c.fault(n, "write "+name+`(split(text, ", "))`, "%s takes the pieces of split", name)
}
