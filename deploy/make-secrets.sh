#!/bin/sh
# Create the passwords and keys that docker-compose.yml reads, as files in secrets/. Existing files stay.
#
#   deploy/make-secrets.sh [FOLDER]
#
# Only the folder is closed to other users. Each container mounts single files, and its own user must be able to read
# them.
set -eu
folder=${1:-$(dirname "$0")/../secrets}
mkdir -p "$folder/tls"
chmod 700 "$folder"

# Letters and digits only, because it becomes part of a URL.
random() {
    LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c 40
}

# Without a line end, because some readers do not strip it.
keep() {
    [ -s "$folder/$1" ] || printf '%s' "$2" >"$folder/$1"
    chmod 444 "$folder/$1"
}

keep redis_password "$(random)"
keep redis_url "redis://:$(cat "$folder/redis_password")@redis:6379/0"
keep flower_password "$(random)"
keep grafana_password "$(random)"
keep api_keys "$(random)"
# The key for metrics is alone in its file, and also one of the API's keys, which allows only metrics.
keep metrics_key "$(random)"
if ! grep -qF "$(cat "$folder/metrics_key")" "$folder/api_keys"; then
    printf '%s\n%s:metrics' "$(cat "$folder/api_keys")" "$(cat "$folder/metrics_key")" >"$folder/api_keys.new"
    chmod 444 "$folder/api_keys.new"
    mv -f "$folder/api_keys.new" "$folder/api_keys"
fi
echo "Passwords and keys are in $folder:"
echo "  API      http://127.0.0.1:8000   Authorization: Bearer $(head -n 1 "$folder/api_keys")"
echo "  Flower   http://127.0.0.1:5555   user kronos, password $(cat "$folder/flower_password")"
echo "  Grafana  http://127.0.0.1:3000   user admin, password $(cat "$folder/grafana_password")"
if grep -q '@redis:6379/' "$folder/redis_url"; then # else it is elsewhere, and you know its address
    echo "  Redis    redis://:$(cat "$folder/redis_password")@127.0.0.1:6379/0"
fi
