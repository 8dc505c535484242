//! `cove run` without a terminal: in scripts, pipes and pipelines.

use std::time::{Duration, Instant};

use cove_testkit::server::TestDirectory;

#[test]
fn the_output_and_the_exit_code_are_the_commands_own() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).finish().expect_code(3);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
}

#[test]
fn a_pipe_on_stdin_reaches_the_command_whole() {
    let place = TestDirectory::new();
    let input = "0123456789abcde\n".repeat(1 << 16);
    let finished = place.cove(["run", "--", "cat"]).input(input.clone()).finish().expect_success();
    assert!(finished.stdout == input, "{} of {} bytes came back", finished.stdout.len(), input.len());
}

#[test]
fn a_command_that_reads_nothing_ends_though_the_pipe_is_full() {
    let place = TestDirectory::new();
    place.cove(["run", "--", "true"]).input(vec![b'x'; 8 << 20]).finish().expect_success();
}

#[test]
fn a_reader_that_leaves_early_ends_an_endless_command() {
    use std::io::{BufRead, BufReader};
    let place = TestDirectory::new();
    let mut running = place.cove(["run", "--", "yes"]).spawn();
    let mut line = String::new();
    BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    let finished = running.finish();
    assert_eq!((finished.code, finished.stderr.as_str()), (141, ""));
}

#[test]
fn each_sandbox_starts_fresh() {
    let place = TestDirectory::new();
    place.cove(["run", "--", "sh", "-c", "echo mine > /tmp/note && cat /tmp/note"]).finish().expect_success();
    let finished = place.cove(["run", "--", "cat", "/tmp/note"]).finish();
    assert_eq!(finished.code, 1, "{finished:?}");
}

#[test]
fn the_environment_comes_from_files_flags_and_the_caller_in_that_order() {
    let place = TestDirectory::new();
    let file = place.path().join("env");
    std::fs::write(&file, "# settings\nA=file\nB=file\n\nFROM_HERE\n").unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["run", "--env-file", file, "--env", "B=flag", "--", "sh", "-c", "echo $A $B $FROM_HERE $SECRET"];
    let finished = place.cove(arguments).env("FROM_HERE", "caller").env("SECRET", "s3cret").finish().expect_success();
    assert_eq!(finished.stdout, "file flag caller\n");
}

#[test]
fn user_directory_and_host_name_are_as_asked() {
    let place = TestDirectory::new();
    let arguments = ["run", "--user", "root", "--workdir", "/w/deep", "--name", "box-1", "--", "sh", "-c"];
    let finished = place.cove(arguments.into_iter().chain(["id -un; pwd; hostname"])).finish().expect_success();
    assert_eq!(finished.stdout, "root\n/w/deep\nbox-1\n");
    let finished = place.cove(["run", "--", "sh", "-c", "id -un; pwd"]).finish().expect_success();
    assert_eq!(finished.stdout, "user\n/home/user\n");
}

#[test]
fn a_directory_that_is_made_belongs_to_the_user() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--workdir", "/w", "--", "sh", "-c", "touch x && ls"]).finish().expect_success();
    assert_eq!(finished.stdout, "x\n");
}

#[test]
fn a_mounted_folder_can_be_read_and_not_written() {
    let place = TestDirectory::new();
    let folder = place.path().join("data");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("in"), "hello\n").unwrap();
    let mount = format!("{}:/data", folder.display());
    let script = "cat /data/in; echo new > /data/out";
    let finished = place.cove(["run", "--user", "root", "--mount", &mount, "--", "sh", "-c", script]).finish();
    assert_eq!(finished.stdout, "hello\n");
    assert_ne!(finished.code, 0, "{finished:?}");
}

#[test]
fn a_time_limit_ends_the_command_with_124_and_says_so() {
    let place = TestDirectory::new();
    let start = Instant::now();
    let finished = place.cove(["run", "--timeout", "300ms", "--", "sleep", "60"]).finish().expect_code(124);
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    insta::assert_snapshot!(finished.stderr, @"cove: ended after 300ms (--timeout)");
}

#[test]
fn a_command_that_ignores_the_end_of_its_time_is_ended_anyway() {
    let place = TestDirectory::new();
    let script = "trap '' TERM INT HUP; while :; do sleep 1; done";
    place.cove(["run", "--timeout", "200ms", "--", "sh", "-c", script]).finish().expect_code(124);
}

#[test]
fn out_of_memory_is_told_with_the_largest_process() {
    let place = TestDirectory::new();
    let eat = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    let finished = place.cove(["run", "--memory", "64M", "--", "python3", "-c", eat]).finish();
    assert_eq!(finished.code, 137, "{finished:?}");
    assert!(finished.stderr.contains("cove: out of memory: "), "{}", finished.stderr);
    assert!(finished.stderr.contains("python3"), "{}", finished.stderr);
    assert!(finished.stderr.contains("hint: "), "{}", finished.stderr);
}

#[test]
fn memory_that_files_took_is_not_blamed_on_a_process() {
    if !cove_engine::kernel::has(cove_engine::kernel::TMPFS_ATTRIBUTES) {
        return; // Files are on disk there.
    }
    let place = TestDirectory::new();
    let write = "head -c 200M /dev/zero > big";
    let finished = place.cove(["run", "--memory", "64M", "--", "sh", "-c", write]).finish();
    assert!(finished.stderr.contains("of it by files that the command wrote"), "{finished:?}");
    assert!(finished.stderr.contains("hint: --disk 256M"), "{finished:?}");
    let kept = place.cove(["run", "--memory", "64M", "--disk", "256M", "--", "sh", "-c", write]).finish();
    assert_eq!(kept.code, 0, "the hint is right: {kept:?}");
}

#[test]
fn a_command_that_fails_at_a_limit_is_told_which() {
    let place = TestDirectory::new();
    let fork = "import os, time\nfor _ in range(30):\n    if os.fork() == 0: time.sleep(20); os._exit(0)";
    let few = place.cove(["run", "--pids", "10", "--", "python3", "-c", fork]).finish();
    assert_ne!(few.code, 0, "{few:?}");
    assert!(
        few.stderr.contains("cove: no more processes: all 10") && few.stderr.contains("hint: --pids 20"),
        "{few:?}"
    );
    let small = place.cove(["run", "--disk", "20M", "--", "sh", "-c", "head -c 60M /dev/zero > big"]).finish();
    assert_ne!(small.code, 0, "{small:?}");
    assert!(small.stderr.contains("cove: disk full: ") && small.stderr.contains("hint: --disk 40M"), "{small:?}");
    let own = place.cove(["run", "--", "sh", "-c", "exit 3"]).finish().expect_code(3);
    assert_eq!(own.stderr, "", "a failure of its own is nobody's limit");
}

#[test]
fn limits_are_what_the_command_sees() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--cpus", "1", "--", "nproc"]).finish().expect_success();
    assert_eq!(finished.stdout, "1\n");
    let fork = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 5 & done; echo all";
    let finished = place.cove(["run", "--pids", "10", "--", "sh", "-c", fork]).finish();
    assert!(!finished.stdout.contains("all") || finished.stderr.contains("fork"), "{finished:?}");
}

#[test]
fn df_shows_a_disk_that_was_just_filled() {
    let place = TestDirectory::new();
    let fill = "head -c 200M /dev/zero > big 2> /dev/null || df -k . | tail -n 1 | tr -s ' ' | cut -d' ' -f2,3";
    let finished = place.cove(["run", "--disk", "100M", "--", "sh", "-c", fill]).finish();
    let told: Vec<u64> = finished.stdout.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    assert!(told.len() == 2 && told[0] == 100 << 10 && told[1] > 90 << 10, "{finished:?}");
}

#[test]
fn the_disk_limit_holds() {
    let place = TestDirectory::new();
    let fill = "dd if=/dev/zero of=/tmp/big bs=1M count=64 2>/dev/null; echo $?; stat -c %s /tmp/big";
    let finished = place.cove(["run", "--disk", "16M", "--", "sh", "-c", fill]).finish().expect_success();
    let mut lines = finished.stdout.lines();
    assert_eq!(lines.next(), Some("1"), "dd was refused: {finished:?}");
    let size: u64 = lines.next().unwrap().parse().unwrap();
    assert!(size <= 16 << 20, "{size} bytes were written");
}

#[test]
fn without_a_network_there_is_only_loopback() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--", "sh", "-c", "ls /sys/class/net 2>/dev/null || cat /proc/net/dev"]).finish();
    assert!(finished.stdout.contains("lo") && !finished.stdout.contains("eth"), "{finished:?}");
}

#[test]
fn a_program_that_is_not_there_is_127_and_one_that_cannot_be_run_126() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--", "no-such-program"]).finish().expect_code(127);
    insta::assert_snapshot!(finished.stderr);
    let finished = place.cove(["run", "--", "/etc/passwd"]).finish().expect_code(126);
    insta::assert_snapshot!(finished.stderr);
}

#[test]
fn a_command_that_a_signal_ends_is_128_and_the_signal() {
    let place = TestDirectory::new();
    place.cove(["run", "--", "sh", "-c", "kill -SEGV $$"]).finish().expect_code(139);
}

#[test]
fn pipes_inside_break_quietly_as_in_any_shell() {
    let place = TestDirectory::new();
    let finished =
        place.cove(["run", "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"]).finish().expect_success();
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("y\n141\n", ""));
}

#[test]
fn eight_at_once_do_not_get_in_each_others_way() {
    let place = TestDirectory::new();
    let mut all: Vec<_> = (0..8)
        .map(|number| place.cove(["run", "--", "sh", "-c", &format!("echo {number} > /tmp/n; cat /tmp/n")]).spawn())
        .collect();
    for (number, running) in all.iter_mut().enumerate() {
        let finished = running.finish();
        assert_eq!((finished.code, finished.stdout.trim()), (0, number.to_string().as_str()), "{}", finished.stderr);
    }
}

/// One that ends tidies up what the next one has perhaps just begun to use.
fn runs_side_by_side(many: usize, runs: usize) {
    let place = TestDirectory::new();
    std::thread::scope(|scope| {
        for _ in 0..many {
            scope.spawn(|| {
                for _ in 0..runs {
                    let finished = place.cove(["run", "--", "echo", "well"]).finish().expect_success();
                    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("well\n", ""));
                }
            });
        }
    });
}

#[test]
fn two_runs_side_by_side_do_not_get_in_each_others_way() {
    runs_side_by_side(2, 40);
}

#[test]
fn eight_runs_side_by_side_do_not_get_in_each_others_way() {
    runs_side_by_side(8, 8);
}
