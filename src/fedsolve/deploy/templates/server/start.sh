#!/bin/sh
# Starts the SuperLink, which carries the messages; Ctrl-C or kill stops it. It keeps nothing on disk: the sites' keys
# are told to it each time. What is news of its log is passed on; LOG=json in server.env: as JSON, LOG=all: all of it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/server.env"
@switches
export FLWR_HOME="$here/home"
mkdir -p "$FLWR_HOME" && chmod 700 "$FLWR_HOME"
rm -f "$FLWR_HOME/log" && mkfifo -m 600 "$FLWR_HOME/log"
({ fedsolve deploy log server --form "${LOG:-text}" || cat; } < "$FLWR_HOME/log" &)
(fedsolve deploy register "$here" > "$FLWR_HOME/log" 2>&1 &)
exec flower-superlink --host "$LISTEN" --port "$PORT" \
  --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \
  --enable-supernode-auth --disable-runtime-dependency-installation > "$FLWR_HOME/log" 2>&1
