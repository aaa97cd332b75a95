#!/usr/bin/env bash
# Makes sure of what pip cannot install; `make setup` runs it. As root it calls apt-get, otherwise it
# prints the one line to run. It fails only where nothing could go on: no venv module.
set -euo pipefail
python=${1:-python3}

python_has() { "$python" -c "$1" 2>/dev/null; }

missing() {
	python_has 'import ensurepip, venv' || echo python3-venv
	python_has 'import ctypes; ctypes.CDLL("libbpf.so.1")' ||
		python_has 'import ctypes; ctypes.CDLL("libbpf.so.0")' || echo libbpf1
	command -v clang >/dev/null || echo clang
	command -v bpftrace >/dev/null || echo bpftrace
	command -v systemd-analyze >/dev/null || echo systemd
	python_has 'import bcc' || [ -e /usr/lib/python3/dist-packages/bcc ] || echo python3-bpfcc
	command -v mkfs.xfs >/dev/null || echo xfsprogs
	command -v mkfs.btrfs >/dev/null || echo btrfs-progs
	command -v mkfs.erofs >/dev/null || echo erofs-utils
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || echo chromium
}

python_has 'import sys; sys.exit(sys.version_info < (3, 10))' || {
	echo "trainobs cannot be set up with $python" >&2
	echo "  found: $("$python" --version 2>&1 || true)" >&2
	echo "  do:    install Python 3.10 or newer, and name it: make setup PYTHON=python3.12" >&2
	exit 1
}

packages=$(missing | xargs)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "Installing system packages: $packages"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	install() { apt-get install -qq -y --no-install-recommends "$@" >/dev/null; }
	# At once, since what follows an installation takes as long for one as for all. Where a release
	# lacks one of them, it still gets the others.
	read -ra all <<<"$packages"
	install "${all[@]}" 2>/dev/null || for package in "${all[@]}"; do
		install "$package" || [ "$package" != libbpf1 ] || # Ubuntu 22.04 has the older one alone
			install libbpf0 || true
	done
	packages=$(missing | xargs)
fi

case " $packages " in
*" python3-venv "*)
	echo "trainobs cannot be set up: $python has no venv module" >&2
	echo "  found: missing packages: $packages" >&2
	echo "  do:    sudo apt-get install -y $packages" >&2
	exit 1
	;;
"  ") ;;
*)
	echo "Going on without: $packages. For them, run: sudo apt-get install -y $packages"
	case " $packages " in *" clang "*) echo "  clang: the ziglang wheel compiles instead" ;; esac
	case " $packages " in *" python3-bpfcc "*) echo "  python3-bpfcc: no tests of BccProbe" ;; esac
	case " $packages " in *" bpftrace "*) echo "  bpftrace: no test of its scripts" ;; esac
	case " $packages " in *" systemd "*) echo "  systemd: no test of the unit" ;; esac
	case " $packages " in *" xfsprogs "* | *" btrfs-progs "*) echo "  xfsprogs, btrfs-progs: no tests on these" ;; esac
	case " $packages " in *" erofs-utils "*) echo "  erofs-utils: no test on EROFS" ;; esac
	case " $packages " in *" chromium "*) echo "  chromium: no tests and pictures of pages" ;; esac
	case " $packages " in *" libbpf1 "*) echo "  libbpf1: no kernel probes" ;; esac
	;;
esac
