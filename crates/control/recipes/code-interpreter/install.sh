# Installs Python packages over /usr, from wheels alone: no package runs code to be installed.
set -efu
umask 022
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_INPUT=1 PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off
[ -e /etc/ssl/certs/ca-certificates.crt ] && export PIP_CERT=/etc/ssl/certs/ca-certificates.crt

python=$(command -v python3) || {
    echo "error: this machine has no python3 in /usr"
    echo "hint: install python3 on the server's machine"
    exit 3
}
if "$python" -m pip --version >/dev/null 2>&1; then
    pip() { "$python" -m pip "$@"; }
elif "$python" -m venv /tmp/pip >/dev/null 2>&1; then
    pip() { /tmp/pip/bin/python -m pip --python "$python" "$@"; }
else
    echo "error: $python has neither pip nor venv"
    echo "hint: install python3-pip or python3-venv on the server's machine"
    exit 3
fi

echo "installing $PACKAGES $EXTRA_PACKAGES"
# shellcheck disable=SC2086 # words
pip install --quiet --ignore-installed --no-compile --only-binary :all: --no-warn-script-location \
    --root-user-action ignore $PACKAGES $EXTRA_PACKAGES
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The libraries' own tests are a fifth of the whole and nobody's to run.
for library in numpy pandas matplotlib mpl_toolkits scipy sklearn skimage sympy networkx IPython; do
    [ -d "$site/$library" ] && find "$site/$library" -type d -name tests -prune -exec rm -rf {} +
done

room=/usr/local/share/cove
mkdir -p "$room"
pip list --path "$site" --format freeze >"$room/packages"
"$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' >"$room/python"
if "$python" -c 'import matplotlib' 2>/dev/null; then
    # Its list of fonts takes seconds to make; it wants to be able to write where it keeps it.
    mkdir -m 1777 "$room/matplotlib"
    MPLCONFIGDIR=$room/matplotlib "$python" -c 'import matplotlib.font_manager'
fi
# Some libraries bring files that are no Python of this version.
"$python" -m compileall -q -j 0 "$site" >/dev/null || true
rm -rf /tmp/pip /root/.cache
