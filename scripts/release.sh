#!/usr/bin/env bash
# release.sh PYTHON OUT: builds what is published, from the last commit: the source of trainobs, a wheel of it for each
# type of machine, and the wheel of trainobs-tensorboard. The wheels come from the source archive, so that it is whole.
# The same commit and the same compiler give the same bytes, wherever and whenever.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1") out=$(realpath -m "$2")

changed=$(git status --porcelain)
if [ -n "$changed" ]; then
	echo "nothing was released" >&2
	echo "  found: changes that are in no commit:" "$(head -n 3 <<<"$changed")" >&2
	echo "  do:    commit them, or build a wheel of them for this machine alone: make wheel" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree" "$work/source"
git archive HEAD | tar -x -C "$work/tree"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

build() { # FOLDER TARGET
	(cd "$1" && "$python" -m hatchling build -d "$out" -t "$2")
}
rm -rf "$out"
build "$work/tree" sdist
tar -xzf "$out"/trainobs-*.tar.gz --strip-components=1 -C "$work/source"
for machine in x86_64 aarch64; do
	TRAINOBS_WHEEL_MACHINE=$machine build "$work/source" wheel
done
build "$work/source/packages/trainobs-tensorboard" wheel
