/* Trains MNIST with onnx-fsdp from C: images from the caller's memory, one update a call.
 *
 *   cc train.c -lonnx_fsdp -o train && ./train mnist.onnx out.onnx
 */
#include <onnx_fsdp.h>
#include <stdio.h>

static float image[64][1][28][28];
static int64_t labels[64];

static int failed(void) {
  fprintf(stderr, "train: %s\n", onnx_fsdp_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "train MODEL.onnx OUT.onnx\n"), 2;
  const onnx_fsdp_option options[] = {{"loss", "nll"}, {"prediction", "logits"}, {"lr", "0.001"}};
  onnx_fsdp_settings settings = {sizeof settings, argv[1], options, 3};
  const int64_t image_dims[] = {64, 1, 28, 28}, label_dims[] = {64};
  const onnx_fsdp_array batch[] = {{"image", ONNX_FSDP_FLOAT32, 4, image_dims, image},
                                   {"labels", ONNX_FSDP_INT64, 1, label_dims, labels}};
  onnx_fsdp_trainer* trainer;
  if (onnx_fsdp_trainer_open(&settings, &trainer) != ONNX_FSDP_OK) return failed();
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 64 * 784; ++i) (&image[0][0][0][0])[i] = (float)((i * 7 + step) % 256) / 255;
    for (int i = 0; i < 64; ++i) labels[i] = (i + step) % 10;
    onnx_fsdp_step row = {sizeof row};
    if (onnx_fsdp_trainer_step(trainer, batch, 2, &row) != ONNX_FSDP_OK) return failed();
    printf("step %d  loss %.9g\n", (int)row.step, row.loss);
  }
  if (onnx_fsdp_trainer_save(trainer, argv[2]) != ONNX_FSDP_OK) return failed();
  onnx_fsdp_trainer_close(trainer);
  return 0;
}
