#include "runtime/remote/transfer.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kCurl = "libcurl.so.4";
constexpr unsigned kOldestCurl = 0x075800;  // 7.88.0, whose signatures S3 takes
constexpr long kMostRedirections = 5;
constexpr size_t kMostHeaders = 200;

// The functions of libcurl.
struct CurlFunctions {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_version_info) version_info = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) set = nullptr;
  decltype(&curl_easy_perform) perform = nullptr;
  decltype(&curl_easy_reset) reset = nullptr;
  decltype(&curl_easy_cleanup) cleanup = nullptr;
  decltype(&curl_easy_strerror) words = nullptr;
  decltype(&curl_slist_append) append = nullptr;
  decltype(&curl_slist_free_all) free_all = nullptr;

  bool load(void* library) {
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return find("curl_global_init", global_init) && find("curl_version_info", version_info) &&
           find("curl_easy_init", easy_init) && find("curl_easy_setopt", set) &&
           find("curl_easy_perform", perform) && find("curl_easy_reset", reset) &&
           find("curl_easy_cleanup", cleanup) && find("curl_easy_strerror", words) &&
           find("curl_slist_append", append) && find("curl_slist_free_all", free_all);
  }
};

// Library and functions stay loaded.
Result<CurlFunctions> load_curl(const Address& address) {
  void* const library = dlopen(kCurl, RTLD_NOW | RTLD_LOCAL);
  OFSDP_REJECT_IF(
      library == nullptr,
      "{}: addresses are read by libcurl, expected {}, found none: install libcurl4, or "
      "fetch the file",
      address.text, kCurl);
  CurlFunctions functions;
  const bool whole = functions.load(library);
  const auto* const version = whole ? functions.version_info(CURLVERSION_NOW) : nullptr;
  OFSDP_REJECT_IF(version == nullptr || version->version_num < kOldestCurl,
                  "{}: addresses are read by libcurl, expected 7.88 or newer, found {}",
                  address.text, version == nullptr ? "none" : version->version);
  OFSDP_REJECT_IF(functions.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK,
                  "{}: libcurl {} does not start", address.text, version->version);
  return functions;
}

// The state of a transfer, which libcurl's callbacks get.
struct Transfer {
  HttpAnswer answer;
  const BodySink* sink = nullptr;
  bool ended = false;  // by the sink
};

size_t take_header(char* bytes, size_t one, size_t count, void* of) {
  auto& answer = static_cast<Transfer*>(of)->answer;
  std::string_view line(bytes, one * count);
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  const size_t colon = line.find(':');
  if (line.starts_with("HTTP/")) {  // of a redirection before, or the last
    answer.headers.clear();
    const size_t blank = line.find(' ');
    answer.status = blank == std::string_view::npos ? 0 : std::atoi(line.data() + blank + 1);
    answer.headers["http-version"] = line.substr(0, blank);
  } else if (colon != std::string_view::npos && answer.headers.size() < kMostHeaders) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    line.remove_prefix(colon + 1);
    while (line.starts_with(' ') || line.starts_with('\t')) line.remove_prefix(1);
    answer.headers[name] = line;
  }
  return one * count;
}

size_t take_body(char* bytes, size_t one, size_t count, void* of) {
  auto& transfer = *static_cast<Transfer*>(of);
  const size_t size = one * count;
  if (transfer.answer.status != 200 && transfer.answer.status != 206) return size;
  const std::span body(reinterpret_cast<const std::byte*>(bytes), size);
  if ((*transfer.sink)(transfer.answer, body)) return size;
  transfer.ended = true;
  return 0;
}

class CurlClient : public HttpClient {
 public:
  CurlClient(const CurlFunctions& curl, const Address& address, double stall_seconds)
      : curl_(curl), address_(address), stall_(stall_seconds), handle_(curl.easy_init()) {}
  CurlClient(const CurlClient&) = delete;
  ~CurlClient() override {
    if (handle_ != nullptr) curl_.cleanup(handle_);
  }

  HttpAnswer get(const std::vector<std::string>& headers, const BodySink& sink) override {
    Transfer transfer;
    transfer.sink = &sink;
    if (handle_ == nullptr) {
      transfer.answer.failure = "no memory for a transfer";
      return transfer.answer;
    }
    std::vector<std::string> all = headers;
    sign(all);
    curl_slist* list = nullptr;
    for (const std::string& header : all) list = curl_.append(list, header.c_str());
    prepare(transfer);
    curl_.set(handle_, CURLOPT_HTTPHEADER, list);
    const CURLcode code = curl_.perform(handle_);
    curl_.set(handle_, CURLOPT_HTTPHEADER, nullptr);
    curl_.free_all(list);
    if (code != CURLE_OK && !transfer.ended) {
      transfer.answer.failure = code == CURLE_OPERATION_TIMEDOUT
                                    ? format_text("no byte came for {} seconds", stall_)
                                    : std::string(curl_.words(code));
      transfer.answer.lasting = code == CURLE_PEER_FAILED_VERIFICATION ||
                                code == CURLE_URL_MALFORMAT || code == CURLE_TOO_MANY_REDIRECTS ||
                                code == CURLE_UNSUPPORTED_PROTOCOL;
    }
    return transfer.answer;
  }

 private:
  void sign(std::vector<std::string>& headers) const {
    if (address_.scheme != "s3") return;
    headers.emplace_back("x-amz-checksum-mode: ENABLED");
    if (address_.keys.id.empty()) return;
    headers.emplace_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!address_.keys.token.empty()) {
      headers.push_back("x-amz-security-token: " + address_.keys.token);
    }
  }

  void prepare(Transfer& transfer) {
    curl_.reset(handle_);
    curl_.set(handle_, CURLOPT_URL, address_.url.c_str());
    const bool follows = address_.scheme != "s3";
    curl_.set(handle_, CURLOPT_FOLLOWLOCATION, follows ? 1L : 0L);
    curl_.set(handle_, CURLOPT_MAXREDIRS, kMostRedirections);
    curl_.set(handle_, CURLOPT_PROTOCOLS_STR, "http,https");  // parse_address has looked at it
    curl_.set(handle_, CURLOPT_REDIR_PROTOCOLS_STR, "https");
    curl_.set(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_.set(handle_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::ceil(stall_ * 1000)));
    curl_.set(handle_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_.set(handle_, CURLOPT_LOW_SPEED_TIME, static_cast<long>(std::ceil(stall_)));
    curl_.set(handle_, CURLOPT_USERAGENT, "onnx-fsdp");
    curl_.set(handle_, CURLOPT_HEADERFUNCTION, &take_header);
    curl_.set(handle_, CURLOPT_HEADERDATA, &transfer);
    curl_.set(handle_, CURLOPT_WRITEFUNCTION, &take_body);
    curl_.set(handle_, CURLOPT_WRITEDATA, &transfer);
    if (address_.keys.id.empty()) return;
    curl_.set(handle_, CURLOPT_AWS_SIGV4,
              format_text("aws:amz:{}:s3", address_.keys.region).c_str());
    curl_.set(handle_, CURLOPT_USERNAME, address_.keys.id.c_str());
    curl_.set(handle_, CURLOPT_PASSWORD, address_.keys.secret.c_str());
  }

  const CurlFunctions curl_;
  const Address address_;
  const double stall_;
  CURL* const handle_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::open(const Address& address, double stall_seconds) {
  OFSDP_ASSIGN_OR_RETURN(const CurlFunctions curl, load_curl(address));
  return std::unique_ptr<HttpClient>(new CurlClient(curl, address, stall_seconds));
}

}  // namespace ofsdp::runtime
