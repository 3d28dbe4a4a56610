#!/bin/sh
# Starts the SuperLink, which carries the messages; Ctrl-C or kill stops it. It keeps nothing on disk.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/server.env"
@switches
export FLWR_HOME="$here/home"
exec flower-superlink --host "$LISTEN" --port "$PORT" \
  --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \
  --enable-supernode-auth --disable-runtime-dependency-installation
