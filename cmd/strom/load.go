package main

import (
	"fmt"
	"strings"

	"github.com/forge-platform/strom/mapping"
)

// loadMapping reads and checks a mapping file.
func (a *app) loadMapping(path string) (*mapping.Plan, error) {
	plan, err := mapping.Load(path, a.env)
	if err != nil && !is[*mapping.Error](err) {
		return nil, &mappingFileError{err}
	}
	return plan, err
}

// The environment variables that stand in for connection flags.
const (
	envBrokers  = "STROM_BROKERS"
	envPostgres = "STROM_POSTGRES"
)

// connections are the flags that say where Kafka and PostgreSQL are. A flag
// goes before its environment variable, and that before the mapping.
type connections struct {
	brokers  []string
	postgres string
}

func (c *connections) fromEnv(a *app) {
	if text, _ := a.env(envBrokers); len(c.brokers) == 0 && text != "" {
		c.brokers = strings.Split(text, ",")
	}
	if text, _ := a.env(envPostgres); c.postgres == "" && text != "" {
		c.postgres = text
	}
}

// into puts the settings in the place of the plan's. A plan that still lacks
// one is a *mapping.Error that says which.
func (c *connections) into(plan *mapping.Plan) error {
	if len(c.brokers) > 0 {
		// TLS and SASL stay as the mapping has them.
		plan.Kafka.Brokers = c.brokers
	}
	if c.postgres != "" {
		plan.Ontology = mapping.Ontology{Postgres: mapping.NewSecret(c.postgres)}
	}
	var lacking []mapping.Fault
	for _, f := range plan.CheckConnections() {
		if c.postgres != "" && strings.HasPrefix(f.Key, "ontology.") {
			continue
		}
		switch f.Key {
		case "kafka.brokers":
			f.Advice = fmt.Sprintf("%s, or --brokers HOST:PORT, or %s", f.Advice, envBrokers)
		case "ontology.postgres":
			f.Advice = fmt.Sprintf("%s, or --postgres URL, or %s", f.Advice, envPostgres)
		}
		lacking = append(lacking, f)
	}
	if len(lacking) > 0 {
		return &mapping.Error{Faults: lacking}
	}
	return nil
}
