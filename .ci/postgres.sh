#!/usr/bin/env bash
# A PostgreSQL server for the tests, with a fresh data folder on a free port:
#
#     eval "$(.ci/postgres.sh start)"    # sets SERVEGYM_POSTGRES, the URL of a database in it
#     .ci/postgres.sh stop               # stops it and removes its folder
#
# Debian's package is installed where initdb is not found (as root). PostgreSQL refuses to run as root: then it runs as
# the user postgres. SERVEGYM_POSTGRES_HOME names the folder it lives in, SERVEGYM_POSTGRES_PORT the port.
set -euo pipefail

home="$(realpath --canonicalize-missing "${SERVEGYM_POSTGRES_HOME:-${TMPDIR:-/tmp}/servegym-postgres-$(id -u)}")"
account="postgres"

say() { echo "$*" >&2; }

binaries() {
    local found
    found="$(compgen -G "/usr/lib/postgresql/*/bin" | sort --version-sort | tail -n 1 || true)"
    if [[ -z "$found" ]] && command -v pg_ctl >/dev/null && command -v initdb >/dev/null; then
        found="$(dirname "$(command -v pg_ctl)")"
    fi
    [[ -n "$found" && -x "$found/initdb" ]] && echo "$found"
}

install() {
    if [[ "$(id -u)" != 0 ]]; then
        say "no initdb here: install PostgreSQL (Debian: apt-get install postgresql), or run this as root"
        exit 1
    fi
    say "installing PostgreSQL"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; } >&2
}

as_server() { # runs a command as the one who may run the server
    if [[ "$(id -u)" == 0 ]]; then
        (cd / && setpriv --reuid="$account" --regid="$account" --init-groups -- "$@")
    else
        "$@"
    fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    local bin port password
    bin="$(binaries)" || { install; bin="$(binaries)" || { say "PostgreSQL was installed, but has no initdb"; exit 1; }; }
    if [[ "$(id -u)" == 0 ]] && ! id "$account" >/dev/null 2>&1; then
        useradd --system --user-group --no-create-home --shell /usr/sbin/nologin "$account"
    fi
    stop
    mkdir -m 700 "$home"
    port="${SERVEGYM_POSTGRES_PORT:-$(free_port)}"
    password="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
    (umask 077 && printf '%s\n' "$password" >"$home/password")
    [[ "$(id -u)" != 0 ]] || chown -R "$account" "$home"
    as_server "$bin/initdb" --pgdata="$home/data" --username=servegym --pwfile="$home/password" \
        --auth=scram-sha-256 --encoding=UTF8 --no-locale --no-sync >/dev/null
    as_server "$bin/pg_ctl" --pgdata="$home/data" --log="$home/log" --wait start \
        -o "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories='$home' -c fsync=off" >/dev/null ||
        { cat "$home/log" >&2; exit 1; }
    echo "export SERVEGYM_POSTGRES=postgresql+psycopg://servegym:$password@127.0.0.1:$port/postgres"
}

stop() {
    [[ -d "$home" ]] || return 0
    if [[ -f "$home/data/postmaster.pid" ]]; then
        as_server "$(binaries)/pg_ctl" --pgdata="$home/data" --mode=immediate --wait stop >/dev/null || true
    fi
    rm -rf "$home"
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    *) say "usage: $0 start|stop"; exit 2 ;;
esac
