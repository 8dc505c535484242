# Looks for the programs of a desktop, or installs them where the template stands on an image with apt-get.
set -eu
umask 022
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_INPUT=1 PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
fi
has() { command -v "$1" >/dev/null 2>&1; }

# Over the host's /usr there is no database of packages.
if [ -d /var/lib/dpkg/info ]; then
    apt-get update
    # shellcheck disable=SC2086 # words
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        xvfb x11vnc openbox xterm fonts-dejavu-core novnc python3-websockify python3 $APT_PACKAGES
    rm -rf /var/lib/apt/lists/*
fi

missing= packages=
lacks() { missing="$missing, $1" packages="$packages $2"; }
if ! { has Xvfb && has x11vnc; } && ! has Xtigervnc && ! has Xvnc; then
    has Xvfb || lacks 'an X server (Xvfb)' xvfb
    has x11vnc || lacks 'a VNC server (x11vnc)' x11vnc
fi
has openbox || has xfwm4 || has fluxbox || has icewm || lacks 'a window manager (openbox)' openbox
has python3 || lacks python3 python3
if [ -n "$missing" ]; then
    echo "error: what a desktop needs is missing here: ${missing#, }"
    echo "hint: on the server's machine: apt-get install$packages"
    echo "hint: or stand it on an image that can install them: cove template build desktop --variant debian"
    exit 3
fi
has xterm || echo "there is no xterm: the desktop begins empty"

# The page that shows the desktop: the viewer runs in the browser, and websockify carries its connection.
pages=/usr/local/share/cove/desktop
mkdir -p "$pages"
if [ -d /usr/share/novnc/core ] && python3 -c 'import websockify' 2>/dev/null; then
    ln -s /usr/share/novnc/core /usr/share/novnc/vendor "$pages/"
elif has npm && python3 -m pip --version >/dev/null 2>&1; then
    # It needs none of its optional libraries.
    python3 -m pip install --quiet --no-deps --only-binary :all: --root-user-action ignore "$WEBSOCKIFY"
    work=$(mktemp -d)
    cd "$work"
    npm pack --silent --cache "$work/cache" "$NOVNC" >/dev/null
    tar -xzf ./*.tgz
    mv package/core package/vendor "$pages/"
    cd /
    rm -rf "$work"
else
    echo "there is no page at port 6080, and VNC viewers connect to port 5900: for the page, install on the server's machine"
    echo "novnc and python3-websockify, or npm and python3-pip"
fi
rm -rf /root/.npm /root/.cache
