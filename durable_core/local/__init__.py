"""The local cloud: what `template.yaml` deploys, on one machine, without Docker and without AWS."""
