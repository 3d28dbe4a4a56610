#!/bin/sh
# Starts the server and all sites of a trial on this machine; Ctrl-C or kill stops them. Each has a log beside this file.
here=$(cd "$(dirname "$0")" && pwd)
"$here/server/start.sh" > "$here/server.log" 2>&1 &
started=$!
for site in "$here"/sites/*/; do
  "$site/start.sh" > "$here/$(basename "$site").log" 2>&1 &
  started="$started $!"
done
trap 'kill $started 2>/dev/null; wait; exit 0' INT TERM
echo "server and sites are starting; their logs are $here/*.log" >&2
wait
