#!/bin/sh
# Healthy where the SuperLink or the node whose folder FEDSOLVE_FOLDER names listens on its port.
# Whether its sites are connected, too, is told by /health of `fedsolve deploy status DIR --page`.
[ -n "$FEDSOLVE_FOLDER" ] || exit 0
. "$FEDSOLVE_FOLDER"/s*.env
exec python -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()' "$PORT"
