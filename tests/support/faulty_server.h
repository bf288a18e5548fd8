// The server in faulty_server.py, for a test: serves the files in a folder.
//
// Ownership: ends the server. Errors: test failures.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "kernels/base/text.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

class FaultyServer {
 public:
  explicit FaultyServer(const std::string& folder) : folder_(folder) {
    const std::string words = format_text(
        "exec /usr/bin/python3 " OFSDP_SOURCE_DIR "/tests/support/faulty_server.py '{}'", folder);
    out_ = popen(words.c_str(), "r");
    if (out_ == nullptr || fscanf(out_, "%d %d", &port_, &process_) != 2) {
      ADD_FAILURE() << "no server";
    }
  }
  FaultyServer(const FaultyServer&) = delete;
  ~FaultyServer() {
    if (process_ > 0) kill(process_, SIGTERM);
    if (out_ != nullptr) pclose(out_);
  }

  std::string endpoint() const { return format_text("http://127.0.0.1:{}", port_); }
  std::string address(const std::string& name) const { return endpoint() + "/" + name; }

  // Counts the answers "STATUS /NAME".
  int count(const std::string& answer) const {
    std::ifstream log(folder_ + "/requests.log");
    int found = 0;
    for (std::string line; std::getline(log, line);) found += line == answer ? 1 : 0;
    return found;
  }

 private:
  const std::string folder_;
  FILE* out_ = nullptr;
  int port_ = 0, process_ = 0;
};

}  // namespace ofsdp
