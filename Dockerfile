# A worker (or Flower) on the CPU. docker build -t kronos-worker:cpu .
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY requirements.txt ./
# torch first, from PyTorch's CPU index: the default index's build brings gigabytes of CUDA libraries.
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps \
      --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' requirements.txt)+cpu" \
 && /opt/venv/bin/pip install --no-cache-dir -r requirements.txt

FROM python:3.11-slim-bookworm
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/var/cache/huggingface
# The folders belong to the user, so that volumes mounted there do too.
RUN useradd --system --uid 10001 --user-group --home-dir /app --shell /usr/sbin/nologin kronos \
 && install -d -o kronos -g kronos /var/cache/huggingface /var/lib/kronos/models
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
COPY kronos_model ./kronos_model
COPY worker ./worker
USER kronos
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-P", "-m", "worker"]
CMD ["worker"]
