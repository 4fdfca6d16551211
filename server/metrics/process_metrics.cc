#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "server/metrics/engine_metrics.h"
#include "server/metrics/family_builder.h"

namespace strata {
namespace {

// The fields of /proc/self/stat after the command, which may hold spaces.
struct ProcStat {
  double start_ticks = 0;
  double virtual_bytes = 0;
  double resident_pages = 0;
};

ProcStat ReadProcStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  ProcStat stat;
  std::string skipped;
  // starttime, vsize and rss are fields 22, 23 and 24; the state after the command is 3.
  for (int field = 3; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks >> stat.virtual_bytes >> stat.resident_pages;
  return stat;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  }
  return 0;
}

double OpenDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 3;  // ".", ".." and the folder itself
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  const ProcStat stat = ReadProcStat();
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  FamilyBuilder out;
  out.Counter("process_cpu_seconds_total", "CPU time, user and system.", CpuSeconds());
  out.Gauge("process_resident_memory_bytes", "Resident memory.",
            stat.resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
  out.Gauge("process_virtual_memory_bytes", "Virtual memory.", stat.virtual_bytes);
  out.Gauge("process_open_fds", "Open file descriptors.", OpenDescriptors());
  out.Gauge("process_max_fds", "Limit of open file descriptors.",
            static_cast<double>(descriptors.rlim_cur));
  out.Gauge("process_start_time_seconds", "Start, in Unix time.",
            BootTime() + stat.start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
  return out.Take();
}

}  // namespace strata
