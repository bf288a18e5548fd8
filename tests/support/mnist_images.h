// FirstImages: the first 240 images of the MNIST sample as a separate data set, and the sample's
// model without mnist.yaml. (Reading all images takes longer than a test trains.)
//
// Ownership: owns its folder on disk. Threads: one. Errors: test failures.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

// The first 240 images of MNIST in a separate data folder: reading all of them takes longer than
// training.
class FirstImages {
 public:
  FirstImages() {
    const std::string data = OFSDP_SOURCE_DIR "/samples/mnist/data/train-";
    folder_.write("images", testing_data::idx(8, {kCount, 28, 28},
                                              inflated(data + "images-idx3-ubyte.gz", 16, 784)));
    folder_.write("labels",
                  testing_data::idx(8, {kCount}, inflated(data + "labels-idx1-ubyte.gz", 8, 1)));
    std::ofstream(path()) << "train:\n"
                             "  image: {file: images, scale: 0.00392156862745098, mean: 0.1307, "
                             "std: 0.3081, shape: [1, 28, 28]}\n"
                             "  labels: {file: labels}\n";
    std::filesystem::create_symlink(OFSDP_SOURCE_DIR "/samples/mnist/mnist.onnx", model());
  }

  std::string path() const { return folder_.path() + "/data.yaml"; }
  std::string model() const { return folder_.path() + "/model.onnx"; }

 private:
  static constexpr uint32_t kCount = 240;

  static std::string inflated(const std::string& path, size_t header, size_t element) {
    std::string bytes(header + kCount * element, '\0');
    const gzFile file = gzopen(path.c_str(), "rb");
    EXPECT_EQ(gzread(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()))
        << path;
    gzclose(file);
    return bytes.substr(header);
  }

  testing_data::TempFolder folder_;
};

}  // namespace ofsdp
