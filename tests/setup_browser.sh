#!/bin/sh
# Installs what tests in a browser need (Debian's chromium) where it may; elsewhere it says why not,
# and the tests are skipped with that reason. Nothing of it is started.
set -u
for command in chromium chromium-browser google-chrome; do
    command -v "$command" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ]; then
    echo "tests in a browser are skipped: only root may install chromium"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "tests in a browser are skipped: no apt-get to install chromium"
    exit 0
fi
install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        chromium fonts-dejavu-core >"$log" 2>&1
}
log=$(mktemp)
if ! install && ! { apt-get update -qq >"$log" 2>&1 && install; }; then
    echo "tests in a browser are skipped: apt-get could not install chromium:"
    tail -n 3 "$log"
fi
rm -f "$log"
