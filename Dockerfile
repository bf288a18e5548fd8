# fsdp-run alone, with what it needs and no system around it (about 120 MB):
#   docker build -t onnx-fsdp . && docker run --rm --shm-size 1g onnx-fsdp demo
#   docker run --rm --shm-size 8g -v "$PWD:/work" onnx-fsdp model.onnx --data data/ --output trained.onnx
FROM debian:12 AS build
COPY . /src
WORKDIR /src
RUN scripts/setup.sh && cmake --preset release && cmake --build --preset release --target fsdp-run
RUN scripts/package.sh --tree /image/usr && scripts/system_libraries.sh /image

FROM scratch
COPY --from=build /image /
ENV PATH=/usr/bin
WORKDIR /work
ENTRYPOINT ["/usr/bin/fsdp-run"]
