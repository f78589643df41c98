# The proxy, and the endpoint picker (deploy/gateway.yaml): docker build -f deploy/proxy.Dockerfile -t servegym-proxy .
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY constraints.txt /wheels/
COPY --from=build /wheels/*.whl /wheels/
RUN python -m pip install --no-cache-dir --constraint /wheels/constraints.txt \
        "servegym[gateway] @ file://$(ls /wheels/servegym-*.whl)" \
    && useradd --create-home --uid 10001 servegym
USER 10001
# Kernels are compiled for the processor at the first start: a volume here keeps them for the next.
ENV SERVEGYM_CACHE=/home/servegym/kernels
EXPOSE 8000
ENTRYPOINT ["servegym", "proxy", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--help"]
