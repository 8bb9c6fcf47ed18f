"""Print the JSON schema of config.yaml: `python -m gradleak.config`."""

import json

from gradleak.config.loader import schema

if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
