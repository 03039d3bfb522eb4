#!/usr/bin/env bash
# Checks that the pool on Google Cloud forecasts: the API is ready, workers are alive, and one forecast comes back.
#
#   deploy/terraform/scripts/smoke_test.sh [--dry-run] [--help]
#
# It starts no machine. In the first 10 to 15 minutes after `terraform apply` it fails, as machines install themselves.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "${BASH_SOURCE[0]%/*}/common.sh"

while [ $# -gt 0 ]; do
    common_option "$1" || fail "no option $1: see --help"
    shift
done
read_deployment

on_api_machine "curl -fsS --max-time 10 http://127.0.0.1:8000/v1/readyz" ||
    fail "the API is not ready: it starts, or no worker is ready (sudo journalctl -u kronos-start on a worker)"
on_api_machine "$in_api status"
on_api_machine "$in_api forecast api_stub/page/sample.csv --pred-len 8 --output /tmp/smoke-test"
$is_dry_run || echo "The pool forecasts."
