package kafka_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forge-platform/strom/kafka"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
	"github.com/forge-platform/strom/sinks/ontology"
)

// selfSigned makes a certificate for 127.0.0.1 and writes it as a CA file.
func selfSigned(t *testing.T) (pair tls.Certificate, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, caFile
}

func TestAPipelineRunsOverTLSAndSCRAM(t *testing.T) {
	pair, ca := selfSigned(t)
	const secret = "correct horse battery staple"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "readings"), kfake.SeedTopics(1, "visits"),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "strom", secret))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	settings := mapping.Kafka{
		Brokers: cluster.ListenAddrs(), TLS: &mapping.TLS{CAFile: ca},
		SASL: &mapping.SASL{Mechanism: "SCRAM-SHA-512", Username: "strom", Password: mapping.NewSecret(secret)},
	}
	run := func(settings mapping.Kafka) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return kafka.New(kafka.Config{
			Topology: processors.NewTopology(metersPlan(t), 1), Kafka: settings, DataDir: t.TempDir(), UntilEnd: true,
			OpenOntology: func(_ context.Context, p ontology.Pipeline) (ontology.Store, error) {
				return ontology.NewMemory(p), nil
			},
		}).Run(ctx)
	}
	if err := run(settings); err != nil {
		t.Fatal(err)
	}

	wrong := settings
	wrong.SASL = &mapping.SASL{Mechanism: "SCRAM-SHA-512", Username: "strom", Password: mapping.NewSecret("wrong " + secret)}
	err = run(wrong)
	if _, ok := errors.AsType[*kafka.UnreachableError](err); !ok {
		t.Errorf("with a wrong password: %v", err)
	}
	if text := fmt.Sprintf("%v %+v", err, wrong); strings.Contains(text, secret) {
		t.Errorf("the password is in %q", text)
	}

	untrusting := settings
	untrusting.TLS = &mapping.TLS{}
	if err := run(untrusting); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with an unknown authority: %v", err)
	}
}
