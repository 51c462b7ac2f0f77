"""The values that use cases are about: a host, the image on it, the Compose project, and a service."""

from envgen.deployment.project import Deployment as Deployment
from envgen.deployment.project import known_service as known_service
from envgen.deployment.project import require_described as require_described
from envgen.deployment.service import LiveService as LiveService
