#!/usr/bin/env bash
# Prepares the text that examples/train_gpt learns from: Jane Austen's six novels (public domain),
# as Debian's r-cran-janeaustenr carries them, read with PyPI's rdata in a throw-away environment.
#
#   scripts/corpus.sh [OUT_DIR]        writes OUT_DIR/corpus.txt (default: target/corpus)
#
# Every version is exact, and both the download and the result are checked against their SHA-256.
# Needs Debian's apt-get and dpkg-deb, and python3 with venv.
set -euo pipefail

package=r-cran-janeaustenr
version=1.0.0-1
deb=${package}_${version}_all.deb
deb_sha256=df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95
text_sha256=65b434d16a8755142bfa95ba19c5f9abd0d30cf3dffe3b6793e834f9f56dcc96
# rdata and everything it imports, so that a new release of none of them changes the run.
python_packages=(
  rdata==1.1.0 numpy==2.4.6 pandas==3.1.1 xarray==2026.9.0 packaging==26.4
  python-dateutil==4.0.0 typing_extensions==4.16.0
)

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../target/corpus}

fail() {
  echo "corpus.sh: $*" >&2
  exit 1
}

check_sha256() { # FILE SHA256
  local got
  got=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$got" = "$2" ] || fail "$1 has SHA-256 $got, expected $2"
}

[ $# -le 1 ] || fail "usage: scripts/corpus.sh [OUT_DIR]"
for tool in apt-get dpkg-deb python3 sha256sum; do
  command -v "$tool" >/dev/null || fail "$tool is needed and was not found"
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [ -f "$out/corpus.txt" ] && echo "$text_sha256  $out/corpus.txt" | sha256sum --check --status; then
  echo "$out/corpus.txt: already there, SHA-256 as expected"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As root, apt drops to a user who may not write here: keep the user that runs the script.
(cd "$work" && apt-get -qq -o "APT::Sandbox::User=$(id -un)" download "$package=$version") ||
  fail "apt-get could not download $package $version (run 'apt-get update' first?)"
[ -f "$work/$deb" ] || fail "apt-get said it downloaded $package, but $deb is not there"
check_sha256 "$work/$deb" "$deb_sha256"
dpkg-deb --extract "$work/$deb" "$work/tree" || fail "dpkg-deb could not unpack $deb"

python3 -m venv "$work/venv" || fail "python3 cannot make a virtual environment (Debian: python3-venv)"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install "${python_packages[@]}" ||
  fail "pip could not install ${python_packages[*]}"
"$work/venv/bin/python" "$here/corpus.py" \
  "$work/tree/usr/lib/R/site-library/janeaustenr/data/Rdata" "$work/corpus.txt" ||
  fail "the R data in $deb could not be read"
check_sha256 "$work/corpus.txt" "$text_sha256"

mv "$work/corpus.txt" "$out/corpus.txt"
echo "$out/corpus.txt: $(wc -c <"$out/corpus.txt") bytes, SHA-256 as expected"
