# The image of the gateway: `docker build --tag torana .`. The guide is docs/howto/run-in-a-container.md.
#
# Any Debian or Ubuntu with Python 3.11 or newer, its venv module and ca-certificates.
ARG BASE=docker.io/library/python:3.13-slim

FROM ${BASE} AS build
# The extras to install, such as "telegram,anthropic".
ARG EXTRAS=""
WORKDIR /src
COPY requirements-uv.lock ./
RUN python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --quiet --require-hashes -r requirements-uv.lock
COPY LICENSE README.md pyproject.toml requirements-dev.lock ./
COPY src src
# The lock has the hash of each package, also of extras and of the build backend; uv verifies them.
RUN python3 -m venv --without-pip /opt/torana \
 && /opt/uv/bin/uv pip install --system-certs --no-cache --python /opt/torana --compile-bytecode \
      --constraint requirements-dev.lock --build-constraint requirements-dev.lock ".[${EXTRAS}]"

FROM ${BASE}
RUN useradd --uid 10001 --user-group --home-dir /data --no-create-home --shell /usr/sbin/nologin torana \
 && install -d -o torana -g torana -m 700 /data
COPY --from=build /opt/torana /opt/torana
# The container publishes the port to the addresses that its operator names; without a token the gateway refuses
# to listen on all addresses.
ENV PATH=/opt/torana/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TORANA_DATA_DIR=/data \
    TORANA_HOST=0.0.0.0
# `torana.toml` and `.env` may be mounted here. Before USER: the gateway must not own the directory.
WORKDIR /etc/torana
USER 10001:10001
VOLUME /data
EXPOSE 18789
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('TORANA_PORT', 18789)}/health\", timeout=4)"]
ENTRYPOINT ["torana"]
CMD ["serve"]
