#!/usr/bin/env bash
# Runs the tests of the Python package with the emulators of other object stores: azurite, by npm, and
# fake-gcs-server, by Go. Both are kept in the user's cache.
#
#   bindings/python/stores.sh
set -uo pipefail

package=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$package/../../scripts/setup.sh"
ensure_packages npm:npm golang-go:go || exit
azurite=3.35.0 gcs=v1.56.1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/longshore/stores-$azurite-$gcs
mkdir -p "$cache" && exec {lock}>"$cache.lock" && flock "$lock" || exit
if [[ ! -e $cache/complete ]]; then
    npm install --silent --no-audit --no-fund --prefix "$cache" "azurite@$azurite" || exit
    GOBIN=$cache/bin go install "github.com/fsouza/fake-gcs-server@$gcs" || exit
    touch "$cache/complete"
fi
export LONGSHORE_AZURITE=$cache/node_modules/.bin/azurite-blob LONGSHORE_FAKE_GCS=$cache/bin/fake-gcs-server
"$package/test.sh"
