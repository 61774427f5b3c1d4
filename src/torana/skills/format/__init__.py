"""The format of a skill: front matter, body, manifest, requirements and triggers."""
