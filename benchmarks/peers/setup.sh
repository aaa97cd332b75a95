#!/usr/bin/env bash
# setup.sh PYTHON FOLDER: makes an environment on top of PYTHON's, with the tools that `make
# bench-peers` compares. What it adds stays in FOLDER, and what is in PYTHON's keeps its version.
# What cannot be installed is told and left out; the benchmark lists it.
set -euo pipefail
base=$1 folder=$2
here=$(dirname "$0")

"$base" -m venv --clear "$folder"
python=$folder/bin/python
# --system-site-packages would show the packages of the system, not those of another environment.
packages=$("$base" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$packages')" \
	>"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"

"$base" -m pip freeze --exclude-editable >"$folder/constraints.txt"
while read -r requirement; do
	"$python" -m pip install -q -c "$folder/constraints.txt" "$requirement" ||
		echo "Going on without $requirement" >&2
done <"$here/requirements.txt"

torch='import torch; print(torch.__file__)'
if [ "$("$base" -c "$torch")" != "$("$python" -c "$torch")" ]; then
	echo "$folder has a torch of its own, so that nothing could be compared" >&2
	exit 1
fi

missing() {
	command -v strace >/dev/null || echo strace
	command -v perf >/dev/null || echo linux-perf
}

packages=$(missing | xargs)
if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	for package in $packages; do # one by one: Ubuntu calls the second linux-tools-generic
		apt-get install -qq -y --no-install-recommends "$package" >/dev/null || true
	done
	packages=$(missing | xargs)
fi
[ -z "$packages" ] ||
	echo "Going on without: $packages. For them, run: sudo apt-get install -y $packages" >&2
