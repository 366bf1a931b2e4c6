# One image for the Spark master, the workers, the job and the page; `notebook` adds a notebook server, under another name.
# Packages and jars are pinned by their digests, jupyterlab by its version. Python's base image and Debian's packages are not: their fixes come
# with the next build.
FROM python:3.11-slim AS dpsql
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless make git && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/dpsql
ENV PATH=/opt/dpsql/.venv/bin:$PATH PIP_NO_CACHE_DIR=1
# Packages and jars are in layers of their own, which a change of a line leaves alone; what only checks and tests need goes again
COPY Makefile requirements.lock ./
RUN make HOST_PYTHON=python3 .venv/.locked \
 && .venv/bin/python -m pip uninstall -qy mypy ast_serialize librt ruff moto boto3 botocore hypothesis compose-spec
COPY conf/ivy.xml conf/ivysettings.xml conf/jars.sha256 conf/
COPY dpsql/jars.py dpsql/errors.py dpsql/
RUN .venv/bin/python -m dpsql.jars && rm -rf .jars/cache
COPY . .
# A checkout may be younger than those layers, with the same lock file
RUN touch .venv/.locked && make setup

FROM dpsql AS notebook
# In an environment of its own, so that it moves no package of dpsql's
RUN python3 -m venv /opt/jupyter && /opt/jupyter/bin/pip install -q jupyterlab==4.6.6 && .venv/bin/python -m ipykernel install --prefix /opt/jupyter
CMD ["/opt/jupyter/bin/jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--allow-root", "--notebook-dir=conf/live"]

FROM dpsql
