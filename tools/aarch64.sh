#!/bin/sh
# A Python 3.11 for AArch64 in a folder of its own, run by QEMU; nothing is installed on this machine.
# Programs are Debian's packages, libraries the wheels of the releases that PYTHON has. Needs apt-get,
# dpkg, Debian's keys and a network.
#
# Usage: sh tools/aarch64.sh FOLDER PYTHON; then FOLDER/python program.py
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$2

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "aarch64.sh: Debian has Python 3.11, and kernels of another cannot be used")'

# packages ARCHITECTURE INTO NAME...: Debian's packages with all that they need, unpacked.
packages() {
    apt=$folder/apt-$1 into=$2
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/etc/preferences.d" "$into"
    : > "$apt/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm main" > "$apt/sources.list"
    for option in "APT::Architecture=$1" "APT::Architectures=$1" "Dir::Etc=$apt/etc" \
        "Dir::Etc::SourceList=$apt/sources.list" "Dir::Etc::SourceParts=/dev/null" \
        "Dir::State=$apt" "Dir::State::status=$apt/status" "Dir::Cache=$apt" \
        "APT::Install-Recommends=false" "Debug::NoLocking=true"; do
        set -- "$@" -o "$option"
    done
    shift 2
    names=
    while [ "$1" != -o ]; do names="$names $1"; shift; done
    apt-get -qq "$@" update
    # shellcheck disable=SC2086  # names are several words
    apt-get -qq "$@" --download-only --yes install $names
    for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$into"; done
    rm -r "$apt"
}

# Nothing of a system but its libraries and Python: no shell, no package manager.
packages arm64 "$folder/root" python3.11 libstdc++6
packages amd64 "$folder/qemu" qemu-user-static
mv "$folder/qemu/usr/bin/qemu-aarch64-static" "$folder"
rm -r "$folder/qemu"

releases=$("$python" -m pip freeze | grep -E '^(numpy|llvmlite|ml[_-]dtypes|click|rich|mpmath)==')
# shellcheck disable=SC2086
"$python" -m pip --disable-pip-version-check install -qq --target "$folder/site" --upgrade \
    --python-version 3.11 --only-binary=:all: --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 $releases

cat > "$folder/python" <<END
#!/bin/sh
exec "$folder/qemu-aarch64-static" -L "$folder/root" -E PYTHONHOME="$folder/root/usr" \\
    -E PYTHONPATH="\${PYTHONPATH:-}:$folder/site" "$folder/root/usr/bin/python3.11" -S "\$@"
END
chmod +x "$folder/python"
