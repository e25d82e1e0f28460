#!/bin/sh
# A step of a pipeline that deploys only with a person's signature: pipeline.sh VERSION
#
# RUN names the run, so that a step that is killed and repeated goes on with the same question.
# approvers.jsonl has the keys of those who may decide: `bp receipt keys USER… > approvers.jsonl`.
set -eu
version=$1

bp ask "Deploy $version?" --name deploy --key "$RUN-deploy" --timeout 30m > receipt.json
bp receipt verify receipt.json --keys approvers.jsonl
./deploy "$version"
