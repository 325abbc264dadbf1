#!/usr/bin/env bash
# Builds a Debian package from this tree, with a virtual environment of its own in /usr/lib/slurm-hadar:
#   packaging/deb/build.sh [--exchange DIR] [--wheel FILE] [FOLDER]
# --exchange: the exchange folder of the site's hadar.toml, for the units; default: /shared/slurm-hadar
# --wheel: this wheel instead of one of the tree; FOLDER: gets the package; default: dist
# Needs python3-venv and pip's usual sources, no root. The package fits the Debian it was built on.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# The distribution's own, as the package depends on it.
python=/usr/bin/python3
name=slurm-hadar

die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

usage() {
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

exchange=/shared/slurm-hadar wheel= to=
while (($#)); do
  case $1 in
    --exchange) exchange=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
    --exchange=*) exchange=${1#*=}; shift ;;
    --wheel) wheel=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
    --wheel=*) wheel=${1#*=}; shift ;;
    -* | '') usage ;;
    *) [[ -z $to ]] || usage; to=$1; shift ;;
  esac
done
[[ $exchange =~ ^/[A-Za-z0-9_./+-]+$ ]] || die "--exchange wants a whole path of letters, digits and _./+-, as it stands in systemd's files"
[[ -z $wheel || -f $wheel ]] || die "there is no wheel $wheel"
command -v dpkg-deb >/dev/null || die "there is no dpkg-deb; this is for Debian and its like"
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || die "$python is no Python 3.11 or later that makes virtual environments; apt-get install python3-venv"
to=${to:-$root/dist}
mkdir -p "$to"

room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
stage=$room/stage
lib=$stage/usr/lib/$name
share=$stage/usr/share

# The environment: nothing in it may name the folder that it was made in.
"$python" -m venv "$room/tools"
pip() { env -u PYTHONPATH "$room/tools/bin/python" -m pip -qq --disable-pip-version-check "$@"; }
if [[ -z $wheel ]]; then
  pip wheel --no-deps -w "$room" "$root"
  wheel=$(echo "$room"/slurm_hadar-*.whl)
fi
# The build itself needs its dependencies, whatever pip is told of the package's.
(unset PIP_NO_DEPS && pip wheel --no-deps -w "$room" "$root/packaging/runtime")
mkdir -p "${lib%/*}"
"$python" -m venv --without-pip "$lib"
pip --python "$lib/bin/python" install --no-compile "$wheel[controller,plugins,web]"
find "$lib/bin" -type f ! -name hbatch ! -name hadar -delete
"$lib/bin/python" -I -m slurm_hadar.isolated "/usr/lib/$name/bin/python"
sed -i '/^command = /d' "$lib/pyvenv.cfg"
rm -rf "$lib"/lib/python3.*/site-packages/slurm_hadar-*/direct_url.json "$lib/share" "$lib/include"
export PYTHONDONTWRITEBYTECODE=1
hadar() { "$lib/bin/python" -m slurm_hadar.cli.main "$@"; }
version=$(hadar --version)
version=${version##* }

mkdir -p "$stage/usr/bin" "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
ln -s ../lib/$name/bin/hbatch ../lib/$name/bin/hadar "$stage/usr/bin/"
hadar manual "$share/man" >/dev/null
gzip -9n "$share"/man/man?/*
for program in hbatch hadar; do
  hadar completion bash $program >"$share/bash-completion/completions/$program"
  hadar completion zsh $program >"$share/zsh/vendor-completions/_$program"
  hadar completion fish $program >"$share/fish/vendor_completions.d/$program.fish"
done

# What systemd and logrotate read lies in place, and nothing of it is switched on.
put() { mkdir -p "${2%/*}" && sed -e 's|@PREFIX@|/usr|g' -e "s|@EXCHANGE@|$exchange|g" "$root/packaging/$1" >"$2"; }
for unit in slurm-hadar.service slurm-hadar-tick.service slurm-hadar-tick.timer \
    slurm-hadar-widen.service slurm-hadar-widen.timer slurm-hadar-alerts.service slurm-hadar-alerts.timer \
    slurm-hadar-web.service; do
  put $unit "$stage/usr/lib/systemd/system/$unit"
done
put slurm-hadar.sysusers "$stage/usr/lib/sysusers.d/$name.conf"
put slurm-hadar.tmpfiles "$stage/usr/lib/tmpfiles.d/$name.conf"
# The exchange folder is shared, so not every machine may give it to its own user hadar.
sed -i "\\|^d $exchange |d; s/ exchange (shared.*/ and no exchange folder: that is made once, by hand./" "$stage/usr/lib/tmpfiles.d/$name.conf"
put slurm-hadar.logrotate "$stage/etc/logrotate.d/$name"
put slurm-hadar.cron "$share/doc/$name/examples/slurm-hadar.cron"
cp "$root/LICENSE" "$share/doc/$name/copyright"
mkdir -p "$share/$name"
cp -r "$root/site_configs" "$root/packaging/prometheus" "$share/$name/"
# For the environments of researchers whose training uses the runtime.
cp "$wheel" "$room"/slurm_hadar_runtime-*.whl "$share/$name/"

"$lib/bin/python" -m compileall -q -j 2 -s "$stage" -p / "$lib/lib"
named=$(grep -rIl "$room" "$stage" || true)
[[ -z $named ]] || die "these files name the folder that they were made in: ${named//$stage/}"

# After what was built, as that says the version and the Python it was built for.
mkdir "$stage/DEBIAN"
cp "$here"/{postinst,prerm,postrm} "$stage/DEBIAN/"
chmod 755 "$stage"/DEBIAN/*
echo "/etc/logrotate.d/$name" >"$stage/DEBIAN/conffiles"
(cd "$stage" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
read -r minor next < <("$python" -c 'import sys; a, b = sys.version_info[:2]; print(f"{a}.{b} {a}.{b + 1}")')
architecture=$(dpkg --print-architecture)
sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" -e "s|@PYTHON@|$minor|" -e "s|@NEXT@|$next|" \
  -e "s|@SIZE@|$(du -sk --exclude=DEBIAN "$stage" | cut -f1)|" \
  -e "s|@MAINTAINER@|${DEBFULLNAME:-slurm-hadar} <${DEBEMAIL:-root@localhost}>|" "$here/control" >"$stage/DEBIAN/control"
package=$to/${name}_${version}_$architecture.deb
# A hundred megabytes of libraries: xz would take minutes and save little.
dpkg-deb --build --root-owner-group -Zzstd -z3 "$stage" "$package" >/dev/null
echo "$package"
