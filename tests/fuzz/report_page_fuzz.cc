// Makes report pages of profiles with hostile strings in every field, and opens them in Chromium. No script in these
// strings may run, the page must make no request, and the strings must not become elements or attributes.
//
// usage: report_page_fuzz SECONDS [SEED]     exit status: 0 no finding, 1 a finding, 77 no Chromium
//
// It does not use libFuzzer, because a start of Chromium takes a second. Each start opens many pages, whose inputs are
// made from a seed. After a finding, the folder with the profile and the page is kept, and its path is printed.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

namespace fs = std::filesystem;

constexpr int kPagesPerStart = 40;

// Counts connections, to detect requests of a page.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_, 64) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      std::perror("report_page_fuzz: socket");
      std::exit(2);
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int connection; (connection = accept(fd_, nullptr, nullptr)) >= 0; close(connection)) ++count_;
    });
  }
  ~Listener() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/"; }
  int count() const { return count_; }

 private:
  const int fd_;
  int port_ = 0;
  std::atomic<int> count_{0};
  std::thread thread_;
};

class Generator {
 public:
  Generator(uint64_t seed, const std::string& url) : random_(seed), url_(url) {}

  size_t Below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random_); }
  bool OneIn(size_t n) { return Below(n) == 0; }

  // Texts that would run a script, load something, or end the construct that contains them.
  std::string Text() {
    const std::string script = "parent.postMessage(`owned`,`*`);new Image().src=`" + url_ + "`";
    const std::string pieces[] = {
        "<img src=x onerror=\"" + script + "\">",
        "<img src=" + url_ + ">",
        "<script>" + script + "</script>",
        "</script><script>" + script + "</script>",
        "</ScRiPt ><script>" + script + "//",
        "<!--<script>",
        "--><script>" + script + "</script>",
        "]]><svg onload=\"" + script + "\">",
        "\"><svg/onload=\"" + script + "\">",
        "'><iframe srcdoc=\"<script>" + script + "</script>\">",
        "<iframe src=\"javascript:" + script + "\"></iframe>",
        "\" onmouseover=\"" + script + "\" autofocus onfocus=\"" + script + "\" x=\"",
        "</style><style>@import '" + url_ + "';*{background:url(" + url_ + ")}</style>",
        "red;background:url(" + url_ + ")",
        "<link rel=stylesheet href=" + url_ + ">",
        "<link rel=prefetch href=" + url_ + ">",
        "<meta http-equiv=refresh content=\"0;url=" + url_ + "\">",
        "<base href=" + url_ + ">",
        "<object data=" + url_ + "></object><embed src=" + url_ + ">",
        "<math><mtext><table><mglyph><style><img src=x onerror=\"" + script + "\">",
        "</title></textarea></option></select></pre><details open ontoggle=\"" + script + "\">",
        "javascript:" + script,
        "${" + script + "}",
        "'+" + script + "+'",
        "\");" + script + "//",
        "\\\");" + script + "//",
        "\\u003cimg src=x onerror=" + script + "\\u003e",
        "&lt;img src=x onerror=" + script + "&gt;",
        "{{js}}{{data}}{{css}}",
        "__proto__",
        "constructor",
        "toString",
        "hasOwnProperty",
        "\xe2\x80\xa8" + script + "\xe2\x80\xa9",
        "\xe2\x80\xae\xc2\x9b\x1b[2J",
        std::string("\0<b>", 4),
        "\xff\xfe<\xc0\xbcscript>",
        "+ADw-script+AD4-" + script,
        std::string(Below(3000), '<'),
        "a::b<c>(d&)",
        "",
    };
    std::string text;
    for (size_t i = 0, count = 1 + Below(3); i < count; ++i) text += pieces[Below(std::size(pieces))];
    // Damaged pieces are tried, too.
    for (size_t i = Below(3); i > 0 && !text.empty(); --i) {
      const size_t at = Below(text.size());
      if (OneIn(2)) {
        text.erase(at, 1 + Below(3));
      } else {
        text.insert(at, 1, "<>\"'`&=/\\ \n\r\t\0;(){}"[Below(20)]);
      }
    }
    return text;
  }
  std::string TextOr(const std::string& usual) { return OneIn(2) ? usual : Text(); }

  // A profile with the usual structure, so that the page draws everything, and with hostile strings.
  ProfileMaker Dump(int dump, const std::vector<std::string>& texts) {
    const auto text = [&](size_t i) { return texts[i % texts.size()]; };
    ProfileMaker maker({{text(0), text(1)},
                        {"inuse_objects", text(2)},
                        {"inuse_space", text(3)},
                        {"peak_space", text(4)},
                        {text(5), "bytes"}});
    maker.message().set_default_sample_type(maker.Text(text(6)));
    maker.message().set_doc_url(maker.Text(text(7)));
    maker.message().set_time_nanos(1700000000000000000 + int64_t{dump} * 1000000000);
    const uint64_t mapping = maker.Mapping(0x1000, 0x2000, 0, text(8), text(9));
    for (size_t s = 0; s < 6; ++s) {
      std::vector<uint64_t> stack;
      for (size_t f = 0; f < 4; ++f) {
        const size_t i = 10 + s * 4 + f * 3;
        const uint64_t function = maker.Function(text(i), text(i + 1), text(i + 2), 1);
        stack.push_back(maker.Location(mapping, 0x1100 + i, {{function, static_cast<int64_t>(f)}}));
      }
      stack.push_back(maker.Location(mapping, 0x1900 + s, {}));
      const int64_t value = (100 + 50 * dump * static_cast<int64_t>(s)) << 10;
      auto& sample = maker.Sample(stack, {value, value, value, value, value},
                                  {{"device", text(s + 40)}, {text(s + 41), text(s + 42)}, {"kind", text(s + 43)}});
      maker.NumberLabel(sample, "bytes", int64_t{1} << (8 + s), text(s + 44));
      maker.NumberLabel(sample, text(s + 45), 7, text(s + 46));
    }
    // In comments, separators are written as %XX.
    const auto coded = [](const std::string& plain) {
      std::string code;
      for (const char c : plain) {
        char hex[8];
        std::snprintf(hex, sizeof(hex), "%%%02X", static_cast<unsigned char>(c));
        code += hex;
      }
      return code;
    };
    maker.Comment("device " + coded(text(60)) + " space=" + coded(text(61)) +
                  " in_use=5 peak=6 limit=10 unaccounted=1 pool=4 idle=2 largest_free_block=1 driver_in_use=3 " +
                  coded(text(62)) + "=" + coded(text(63)));
    maker.Comment("device " + text(64) + " name=7 space=8 in_use=" + text(65));
    maker.Comment("tracker dropped_records=3 dropped_bytes=4 x=" + text(66));
    maker.Comment("counter requests value=" + std::to_string(10 * (dump + 1)));
    maker.Comment(text(67));
    return maker;
  }

  // The name of a file has no slash and a maximum length.
  std::string FileName() {
    std::string name = Text().substr(0, 120);
    for (char& c : name) {
      if (c == '/' || c == '\0') c = '_';
    }
    return "p" + name;
  }

 private:
  std::mt19937_64 random_;
  const std::string url_;
};

// A page that opens the pages in frames, uses each like a user, and reports errors by `say(i, what)`.
constexpr char kDriver[] = R"html(<!DOCTYPE html><meta charset="utf-8"><body><pre id="said"></pre><script>
const said = document.getElementById("said");
const say = (page, what) => { said.textContent += page + ": " + what + "\n"; };
addEventListener("message", event => {
  const frame = [...document.querySelectorAll("iframe")].find(f => f.contentWindow === event.source);
  say(frame ? frame.dataset.page : "unknown", event.data === "control" ? "control" : "a script ran");
});
const tags = new Set(("HTML HEAD META TITLE STYLE BODY HEADER DIV H1 H2 H3 P BUTTON MAIN SECTION LABEL SELECT OPTION INPUT " +
  "DETAILS SUMMARY PRE SCRIPT ARTICLE SPAN I B DL DT DD TABLE THEAD TBODY TR TH TD A SMALL TEMPLATE CODE svg path BR CANVAS").split(" "));
const attributes = new Set(("lang charset http-equiv content name class id type title hidden aria-label aria-live aria-pressed " +
  "aria-sort role placeholder open style value selected data-node data-value data-sort data-find data-per viewBox preserveAspectRatio d tabindex " +
  "aria-valuemin aria-valuemax aria-valuenow aria-valuetext width height").split(" "));
function inspect(page, inner) {
  for (const e of inner.querySelectorAll("*")) {
    if (!tags.has(e.tagName)) say(page, "element " + e.tagName);
    for (const a of e.attributes) if (!attributes.has(a.name)) say(page, "attribute " + a.name);
  }
  if (inner.querySelectorAll("script").length !== 2) say(page, "scripts");
  if (inner.querySelectorAll("meta").length !== 3) say(page, "metas");
  if (!inner.getElementById("found").textContent) say(page, "nothing drawn");
}
function use(page, frame) {
  const inner = frame.contentDocument;
  if (!inner) return say(page, "cannot be inspected");
  frame.contentWindow.addEventListener("error", event => say(page, "error " + event.message));
  inspect(page, inner);
  const change = (id, event) => {
    const control = inner.getElementById(id);
    for (const value of [...(control.options || [])].map(o => o.value).slice(0, 8)) {
      control.value = value;
      control.dispatchEvent(new frame.contentWindow.Event(event));
    }
  };
  change("device", "change");
  change("label", "change");
  for (const what of ["[data-value]", "[data-sort]", "[data-node]", "[data-find]"]) {
    for (let i = 0; i < 12; ++i) {
      const all = inner.querySelectorAll(what);
      if (i >= all.length) break;
      all[i].dispatchEvent(new frame.contentWindow.MouseEvent("mousemove", {bubbles: true, clientX: 5, clientY: 5}));
      all[i].click();
    }
    inspect(page, inner);
  }
  say(page, "done");
}
onload = () => { for (const f of document.querySelectorAll("iframe")) if (f.dataset.page !== "control") use(f.dataset.page, f); };
</script>)html";

constexpr char kControl[] = "<body><img src=x onerror=\"parent.postMessage('control','*')\"></body>";

std::string FramesOf(int pages) {
  std::string html = "<iframe data-page=control src=control.html></iframe>";
  for (int i = 0; i < pages; ++i) {
    const std::string page = std::to_string(i);
    html += "<iframe data-page=" + page + " src=" + page + ".html width=900 height=700></iframe>";
  }
  return html;
}

// Makes the pages of one start of Chromium and opens them. Returns a description of the finding, "" if there is none.
std::string RunBatch(const fs::path& dir, Generator& generator, const Listener& listener) {
  for (int page = 0; page < kPagesPerStart; ++page) {
    const fs::path input = dir / std::to_string(page);
    fs::create_directories(input);
    std::vector<std::string> texts;
    for (size_t i = 0, count = 3 + generator.Below(20); i < count; ++i) texts.push_back(generator.Text());
    std::vector<std::string> arguments = {"report", "-o", dir / (std::to_string(page) + ".html"), "--per", "requests"};
    for (int dump = 0, dumps = generator.OneIn(3) ? 1 : 3; dump < dumps; ++dump) {
      const std::string path = input / (std::to_string(dump) + generator.FileName());
      generator.Dump(dump, texts).Write(path);
      arguments.push_back(path);
    }
    const CommandResult result = RunTool(arguments);
    if (result.exit_code != 0) return std::to_string(page) + ": report failed: " + result.err + "\n";
  }
  WriteFile(dir / "control.html", kControl);
  WriteFile(dir / "driver.html", kDriver + FramesOf(kPagesPerStart));
  const int before = listener.count();
  const CommandResult browser =
      RunCommand({"timeout", "300", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                  "--disable-background-networking", "--allow-file-access-from-files",
                  "--user-data-dir=" + (dir / "chromium").string(), "--virtual-time-budget=20000", "--dump-dom",
                  "file://" + (dir / "driver.html").string()});
  const size_t begin = browser.out.find("<pre id=\"said\">");
  const size_t end = browser.out.find("</pre>", begin);
  if (begin == std::string::npos || end == std::string::npos) return "Chromium did not open the pages: " + browser.err;
  std::string said = browser.out.substr(begin + 15, end - begin - 15);
  // The driver must report that it detects a script that runs, and that it has used each page to the end.
  std::vector<std::string> expected = {"control: control\n"};
  for (int page = 0; page < kPagesPerStart; ++page) expected.push_back(std::to_string(page) + ": done\n");
  std::string wrong;
  for (const std::string& line : expected) {
    size_t at = 0;
    while ((at = said.find(line, at)) != std::string::npos && at != 0 && said[at - 1] != '\n') ++at;
    if (at == std::string::npos) {
      wrong += "missing: " + line;
    } else {
      said.erase(at, line.size());
    }
  }
  wrong += said;
  if (listener.count() != before) wrong += "a page made a request\n";
  return wrong;
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (RunCommand({"chromium", "--version"}).exit_code != 0) {
    std::puts("report_page_fuzz: Chromium is not here");
    return 77;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
  const Listener listener;
  Generator generator(seed, listener.url());
  const fs::path dir = fs::temp_directory_path() / ("hbmprof_report_page_fuzz_" + std::to_string(getpid()));
  int pages = 0;
  do {
    fs::remove_all(dir);
    fs::create_directories(dir);
    const std::string wrong = RunBatch(dir, generator, listener);
    if (!wrong.empty()) {
      std::printf("report_page_fuzz: seed %llu, %d pages before this start, in %s:\n%s",
                  static_cast<unsigned long long>(seed), pages, dir.c_str(), wrong.c_str());
      return 1;
    }
    pages += kPagesPerStart;
  } while (std::chrono::steady_clock::now() < end);
  fs::remove_all(dir);
  std::printf("report_page_fuzz: seed %llu, %d pages, nothing found\n", static_cast<unsigned long long>(seed), pages);
  return 0;
}

}  // namespace
}  // namespace hbmprof_test

int main(int argc, char** argv) { return hbmprof_test::Main(argc, argv); }
