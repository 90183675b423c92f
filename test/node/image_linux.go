package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Image is the name of the one image that there is, of test/node/pause. It is also that of the sandboxes.
const Image = "unstale.test/pause:1"

// writeImage builds the image, as a tar of an OCI image layout.
func writeImage(path string) error {
	dir, err := os.MkdirTemp("", "pause")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "github.com/unstale/unstale/test/node/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image's program: %w: %s", err, out)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := tarOf(file{"pause", 0o755, code})
	if err != nil {
		return err
	}
	const (
		ofConfig, ofLayer = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar"
		ofManifest        = "application/vnd.oci.image.manifest.v1+json"
	)
	config := jsonOf(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	manifest := jsonOf(map[string]any{
		"schemaVersion": 2, "mediaType": ofManifest, "config": descriptor(ofConfig, config), "layers": []any{descriptor(ofLayer, layer)},
	})
	named := descriptor(ofManifest, manifest)
	named["annotations"] = map[string]string{"io.containerd.image.name": Image, "org.opencontainers.image.ref.name": "1"}
	files := []file{
		{"oci-layout", 0o644, jsonOf(map[string]any{"imageLayoutVersion": "1.0.0"})},
		{"index.json", 0o644, jsonOf(map[string]any{"schemaVersion": 2, "manifests": []any{named}})},
	}
	for _, blob := range [][]byte{config, layer, manifest} {
		sum := sha256.Sum256(blob)
		files = append(files, file{"blobs/sha256/" + hex.EncodeToString(sum[:]), 0o644, blob})
	}
	whole, err := tarOf(files...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, whole, 0o600)
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func descriptor(mediaType string, b []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(b), "size": len(b)}
}

func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of maps and strings here
	}
	return b
}
