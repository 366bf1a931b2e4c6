# One image for the Spark master, the workers and the job; `notebook` adds a notebook server.
FROM python:3.11-slim AS dpsql
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-21-jre-headless make git && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/dpsql
COPY . .
RUN make setup
ENV PATH=/opt/dpsql/.venv/bin:$PATH

FROM dpsql AS notebook
RUN .venv/bin/python -m pip install --no-cache-dir jupyterlab

FROM dpsql
