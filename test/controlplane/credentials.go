package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// credentials are the administrator's token, the key that signs service account tokens, and the certificate clients
// must trust. They lie below the data folder and are made once.
type credentials struct {
	token          string
	tokenFile      string
	signingKeyFile string
	caFile         string
}

func loadCredentials(dir string) (credentials, error) {
	c := credentials{
		tokenFile:      filepath.Join(dir, "tokens.csv"),
		signingKeyFile: filepath.Join(dir, "service-account.key"),
		caFile:         servingCertFile(dir),
	}
	line, err := os.ReadFile(c.tokenFile)
	switch {
	case err == nil:
		c.token, _, _ = strings.Cut(string(line), ",")
		return c, nil
	case !errors.Is(err, fs.ErrNotExist):
		return c, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return c, err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(c.signingKeyFile, pem.EncodeToMemory(block), 0o600); err != nil {
		return c, err
	}
	random := make([]byte, 16)
	rand.Read(random)
	c.token = hex.EncodeToString(random)
	return c, os.WriteFile(c.tokenFile, []byte(c.token+`,admin,admin,"system:masters"`+"\n"), 0o600)
}

// writeKubeconfig makes file appear whole: whoever waits for it never reads half of it.
func writeKubeconfig(file, address string, c credentials) error {
	ca, err := os.ReadFile(c.caFile)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: controlplane
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: admin
  user: {token: %s}
contexts:
- name: controlplane
  context: {cluster: controlplane, user: admin}
current-context: controlplane
`, address, base64.StdEncoding.EncodeToString(ca), c.token)
	part := file + ".part"
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(part, file)
}
