# What start.sh needs of Google Cloud.
# shellcheck shell=bash
# shellcheck disable=SC2154  # settings come from Terraform

# The token of this machine's service account.
access_token() {
    curl -fsS --retry 5 -H 'Metadata-Flavor: Google' \
        http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token |
        sed 's/.*"access_token":"\([^"]*\)".*/\1/'
}

# as_machine CURL_ARGUMENTS: a request to Google's API, whose token no other user can see.
as_machine() { curl -fsS --max-time 30 -H @<(access_token | sed 's/^/Authorization: Bearer /') "$@"; }

fetch_secret() {
    as_machine "https://secretmanager.googleapis.com/v1/projects/$project/secrets/$name_prefix-$1/versions/latest:access" |
        sed -n 's/.*"data": *"\([^"]*\)".*/\1/p' | base64 -d
}

log_in_to_registry() {
    access_token | docker login --username oauth2accesstoken --password-stdin "https://${registry%%/*}"
}

# The buckets, as folders of the containers' user: writable where the machine's service account may write.
mount_folders() {
    local folder
    add_repository gcsfuse https://packages.cloud.google.com/apt/doc/apt-key.gpg \
        'https://packages.cloud.google.com/apt gcsfuse-noble main'
    install_packages gcsfuse
    for folder in $folders; do
        install -d "${ROOT:-}/mnt/kronos/$folder"
        mountpoint -q "${ROOT:-}/mnt/kronos/$folder" ||
            gcsfuse -o allow_other --uid 10001 --gid 10001 "$project-$name_prefix-$folder" "${ROOT:-}/mnt/kronos/$folder"
    done
}

# report_load QUEUE JOBS: one point of the metric that the autoscalers read.
report_load() {
    as_machine -o /dev/null "https://monitoring.googleapis.com/v3/projects/$project/timeSeries" \
        -H 'Content-Type: application/json' --data @- <<END
{"timeSeries": [{
  "metric": {"type": "$load_metric", "labels": {"queue": "$1"}},
  "resource": {"type": "global", "labels": {"project_id": "$project"}},
  "points": [{"interval": {"endTime": "$(date -u +%Y-%m-%dT%H:%M:%SZ)"}, "value": {"doubleValue": $2}}]
}]}
END
}
