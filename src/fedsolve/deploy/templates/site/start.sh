#!/bin/sh
# Starts this site's node, and again when it ends: a node whose key is not registered yet, or that was cut off a moment
# ago, is refused at first. Ctrl-C or kill stops it. What is news of its log is passed on; LOG=json in site.env: as JSON,
# LOG=all: all of it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/site.env"
@switches
export FLWR_HOME="$here/home"
case $DATA in /*) ;; *) DATA=$here/$DATA ;; esac
case $STATE in /*) ;; *) STATE=$here/$STATE ;; esac
# The site's own rules, which no server changes: its split, the least it answers from, how long an answer may take, and
# which column of a table is what.
rules="test=\"$TEST\" split_seed=\"$SPLIT_SEED\" min_samples=\"$MIN_SAMPLES\" min_class=\"$MIN_CLASS\""
rules="$rules min_cell=\"$MIN_CELL\" label=\"$LABEL\" drop=\"$DROP\" person=\"$PERSON\" task=\"$TASK\""
rules="$rules date_as=\"$DATE_AS\" encoding=\"$ENCODING\" stream=\"$STREAM\""
rules="$rules min_persons=\"$MIN_PERSONS\" max_parameters=\"$MAX_PARAMETERS\" max_leverage=\"$MAX_LEVERAGE\""
rules="$rules allow_methods=\"$ALLOW_METHODS\" allow_maps=\"$ALLOW_MAPS\" allow_columns=\"$ALLOW_COLUMNS\""
rules="$rules privacy=\"$PRIVACY\" quorum=\"$QUORUM\" epsilon_max=\"$EPSILON_MAX\""
rules="$rules deadline=\"$DEADLINE\" allow_splits=\"$ALLOW_SPLITS\""
# Messages are answered by the fedsolve that is installed here. What a server ships is never unpacked.
mkdir -p "$FLWR_HOME" && chmod 700 "$FLWR_HOME"
(umask 077 && head -c 32 /dev/urandom > "$FLWR_HOME/secret")
rm -f "$FLWR_HOME/log" && mkfifo -m 600 "$FLWR_HOME/log"
{ fedsolve deploy log "$NAME" --form "${LOG:-text}" || cat; } < "$FLWR_HOME/log" &
exec > "$FLWR_HOME/log" 2>&1
fedsolve deploy answer "127.0.0.1:$PORT" "$FLWR_HOME/secret" &
runner=$!
trap 'kill "$child" "$runner" 2>/dev/null; exec > /dev/null 2>&1; wait; exit 0' INT TERM
while :; do
  flower-supernode --isolation process --superexec-auth-secret-file "$FLWR_HOME/secret" \
    --superlink "$SUPERLINK" --root-certificates "$here/ca.crt" \
    --auth-supernode-private-key "$here/node.key" --host 127.0.0.1 --port "$PORT" \
    --node-config "client=\"$NAME\" data=\"$DATA\" state=\"$STATE\" features=\"$FEATURES\" model=\"$MODEL\" keys=\"$here\" $rules" &
  child=$!
  wait "$child"
  echo "the node of $NAME ended; next try in 5 s" >&2
  sleep 5 &
  child=$!
  wait "$child"
done
