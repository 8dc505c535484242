# The template `code-interpreter`: Python packages in a layer over /usr.
#
# Runs as root of a sandbox that is gone afterwards. $PACKAGES are installed below /layer, from wheels alone: no package runs
# code to be installed. All times are $TIME, and Python is compiled after that, so that the same wheels make the same layer.
set -eu
exec >&2
umask 022
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_INPUT=1 TMPDIR=/layer/.tmp
[ -e /etc/ssl/certs/ca-certificates.crt ] && export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
mkdir -p "$TMPDIR"

python=$(command -v python3) || { echo "error: this machine has no python3 in /usr"; echo "hint: install python3"; exit 3; }
if "$python" -m pip --version >/dev/null 2>&1; then
    pip() { "$python" -m pip "$@"; }
elif "$python" -m venv /tmp/pip >/dev/null 2>&1; then
    pip() { /tmp/pip/bin/python -m pip --python "$python" "$@"; }
else
    echo "error: $python has neither pip nor venv"; echo "hint: install python3-pip or python3-venv"; exit 3
fi

echo "installing $PACKAGES"
# shellcheck disable=SC2086 # words
pip install --quiet --root /layer --ignore-installed --no-compile --only-binary :all: --no-warn-script-location \
    --root-user-action ignore $PACKAGES
rm -rf "$TMPDIR"; unset TMPDIR
site=$(find /layer/usr -type d \( -name dist-packages -o -name site-packages \) -prune -print)
[ -n "$site" ] || { echo "error: pip installed nothing below /usr"; exit 3; }

# The libraries' own tests are a fifth of the whole and nobody's to run.
for library in numpy pandas matplotlib mpl_toolkits scipy sklearn skimage sympy networkx IPython; do
    for folder in $site; do
        [ -d "$folder/$library" ] && find "$folder/$library" -type d -name tests -prune -exec rm -rf {} +
    done
done

room=/layer/usr/local/share/cove
mkdir -p "$room"
path=$(printf '%s:' $site)
pip list --path "${site%%
*}" --format freeze >"$room/packages"
"$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' >"$room/python"
if PYTHONPATH=$path "$python" -c 'import matplotlib' 2>/dev/null; then
    # Its list of fonts takes seconds to make; it wants to be able to write where it keeps it.
    mkdir -m 1777 "$room/matplotlib"
    PYTHONPATH=$path MPLCONFIGDIR=$room/matplotlib PYTHONDONTWRITEBYTECODE=1 "$python" -c 'import matplotlib.font_manager'
fi
find /layer -name __pycache__ -prune -exec rm -rf {} +
find /layer -exec touch -h -d "@$TIME" {} +
# Some libraries bring files that are no Python of this version.
"$python" -m compileall -q -j 0 -s /layer /layer/usr >/dev/null || true
