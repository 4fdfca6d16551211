"""Holds rendered objects against Kubernetes' own schemas, strictly: a field that no schema knows is
an error, as a misspelt one would be ignored by the cluster at best."""

import json
import pathlib

import jsonschema

# Of other projects' controllers, whose schemas are not Kubernetes': only that what they need to
# act is there.
CUSTOM = {
    ("monitoring.coreos.com/v1", "PodMonitor"): ["selector", "podMetricsEndpoints"],
    ("monitoring.coreos.com/v1", "PrometheusRule"): ["groups"],
    ("keda.sh/v1alpha1", "ScaledObject"): ["scaleTargetRef", "triggers"],
}
BASE = "https://kubernetes.io/api/_definitions.json"


def forbid_unknown_fields(schema):
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        for value in schema.values():
            forbid_unknown_fields(value)
    elif isinstance(schema, list):
        for value in schema:
            forbid_unknown_fields(value)


class Schemas:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.definitions = self._read("_definitions.json")
        self.validators = {}

    def _read(self, name):
        schema = json.loads((self.folder / name).read_text())
        forbid_unknown_fields(schema)
        return schema

    def _validator(self, api, kind):
        group, _, version = api.rpartition("/")
        group = group.split(".")[0]
        name = "-".join(part for part in (kind.lower(), group, version) if part) + ".json"
        if name not in self.validators:
            if not (self.folder / name).exists():
                return None
            schema = self._read(name)
            # One resolver for a schema: it remembers what it looked up.
            resolver = jsonschema.RefResolver(schema["$id"], schema, store={BASE: self.definitions})
            self.validators[name] = jsonschema.Draft202012Validator(schema, resolver=resolver)
        return self.validators[name]

    def check(self, document):
        """Returns what is wrong with it, a sentence each."""
        api, kind = document.get("apiVersion", ""), document.get("kind", "")
        where = f"{kind} {document.get('metadata', {}).get('name', '?')}"
        if (api, kind) in CUSTOM:
            missing = [key for key in CUSTOM[api, kind] if not document.get("spec", {}).get(key)]
            return [f"{where}: spec.{key} is missing" for key in missing]
        validator = self._validator(api, kind)
        if validator is None:
            return [f"{where}: no schema for {api} {kind}"]
        return [
            f"{where}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
            for error in validator.iter_errors(document)
        ]
