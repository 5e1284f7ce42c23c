"""Parts of a front that do not depend on its protocol: TLS handshakes, response memory and quotas
per stream."""
