// HttpClient: requests over libcurl, which is loaded (libcurl.so.4) when an address is named.
//
// A transfer ends if no byte comes for `stall_seconds`. TLS certificates are checked. Redirections
// lead to https:// alone, and a signed request follows none.
//
// One thread at a time. Errors of `open`: kInput with the address if libcurl is missing or older
// than 7.88, or if this build has no client. `get` returns failures in its answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/remote/address.h"

namespace ofsdp::runtime {

struct HttpAnswer {
  int status = 0;                              // 0: no answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string failure;                         // why the transfer broke; empty: it is whole
  bool lasting = false;                        // another attempt would fail too

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// Takes bytes of the body of an answer with status 200 or 206; returns false to end the transfer.
using BodySink = std::function<bool(const HttpAnswer& answer, std::span<const std::byte> bytes)>;

class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> open(const Address& address, double stall_seconds);
  virtual ~HttpClient() = default;
  // `headers`: "Name: value".
  virtual HttpAnswer get(const std::vector<std::string>& headers, const BodySink& sink) = 0;
};

}  // namespace ofsdp::runtime
