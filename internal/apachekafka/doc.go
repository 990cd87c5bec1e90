// Package apachekafka fetches Apache Kafka through Maven and starts it: one node,
// broker and controller, a process of its own on loopback. Tests use it through
// internal/kafkatest, benchmarks as it is.
//
// A node ends with this process, however that ends, SIGKILL included, and then
// neither process nor file is left (supervise.go says how).
package apachekafka
