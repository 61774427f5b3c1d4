#!/usr/bin/env bash
# Install the programs of other projects that tests need, on a runner with Ubuntu.
set -euo pipefail
sudo apt-get update -qq
sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  bubblewrap caddy dovecot-imapd haproxy iproute2 nginx-light ngircd prometheus prosody
# Ubuntu forbids the sandbox's user namespaces to programs without a profile.
sudo sysctl --quiet --write kernel.apparmor_restrict_unprivileged_userns=0
sudo npm install --global --no-fund --no-audit --loglevel error @modelcontextprotocol/server-everything@2026.8.31
