//! `cove run -it` in a real pseudo-terminal: what a person sees and types.

use cove_testkit::Terminal;
use cove_testkit::server::TestDirectory;

use crate::terminal_verbs::TELLS_SIZES;

fn shell(place: &TestDirectory) -> Terminal {
    let mut terminal =
        Terminal::cove(&place.data(), ["run", "-it", "--env", "PS1=inside> ", "--", "bash", "--norc", "-i"]);
    terminal.sees("inside> ");
    terminal
}

#[test]
fn a_shell_prompts_echoes_and_gives_its_exit_code() {
    let place = TestDirectory::new();
    let mut terminal = shell(&place);
    assert!(!terminal.is_cooked());
    terminal.types("tty; test -t 0 && test -t 1 && test -t 2 && echo all-$((1+1))\r");
    terminal.sees("/dev/pts/");
    terminal.sees("all-2");
    terminal.types("exit 7\r");
    assert_eq!(terminal.ends(), 7);
    assert!(terminal.is_cooked());
}

#[test]
fn the_size_is_passed_on_at_the_start_and_at_every_change() {
    let place = TestDirectory::new();
    let mut terminal = Terminal::cove(&place.data(), ["run", "-it", "--", "python3", "-c", TELLS_SIZES]);
    terminal.sees("now:24 80:");
    for (rows, columns) in [(50, 132), (30, 100)] {
        terminal.resize(rows, columns);
        terminal.sees(&format!("now:{rows} {columns}:"));
    }
    terminal.types("3\r");
    assert_eq!(terminal.ends(), 3);
}

#[test]
fn control_c_interrupts_the_program_inside_and_not_us() {
    let place = TestDirectory::new();
    let mut terminal = shell(&place);
    terminal.types("echo begin-$((1+1)); sleep 600\r");
    terminal.sees("begin-2");
    terminal.types("\x03");
    terminal.types("echo code-$?-\r");
    terminal.sees("code-130-");
    terminal.types("exit\r");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn job_control_works_inside() {
    let place = TestDirectory::new();
    let mut terminal = shell(&place);
    terminal.types("echo go-$((1+1)); sleep 600\r");
    terminal.sees("go-2");
    terminal.types("\x1a");
    terminal.sees("Stopped");
    terminal.types("bg; jobs\r");
    terminal.sees("Running");
    terminal.types("kill %1; wait; echo done-$((1+1))\r");
    terminal.sees("done-2");
    terminal.types("exit\r");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn a_full_screen_program_draws_reacts_to_single_keys_and_leaves_the_screen_as_it_was() {
    let place = TestDirectory::new();
    // What vim and top do: the alternate screen, no echo, keys one by one, a redraw on resize.
    let program = "\
import curses
def main(screen):
    screen.addstr(0, 0, 'press q'); screen.refresh()
    while True:
        key = screen.getch()
        screen.erase(); screen.addstr(0, 0, 'size %dx%d key %d.' % (*screen.getmaxyx(), key)); screen.refresh()
        if key == ord('q'): break
curses.wrapper(main)
print('left it')";
    let mut terminal = Terminal::cove(&place.data(), ["run", "-it", "--", "python3", "-c", program]);
    terminal.sees("\x1b[?1049h");
    terminal.sees("press q");
    terminal.types("x");
    terminal.sees("key 120.");
    terminal.resize(30, 100);
    terminal.sees("30x100");
    terminal.types("q");
    terminal.sees("\x1b[?1049l");
    terminal.sees("left it");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_cooked());
}

#[test]
fn end_of_file_from_the_keyboard_ends_a_reader() {
    let place = TestDirectory::new();
    let mut terminal = Terminal::cove(&place.data(), ["run", "-it", "--", "cat"]);
    terminal.waits_for_raw_mode();
    terminal.types("line\r");
    terminal.sees("line\r\nline");
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn the_terminal_is_restored_when_we_are_told_to_end() {
    let place = TestDirectory::new();
    let mut terminal = shell(&place);
    terminal.types("trap '' TERM\r");
    terminal.sees("inside> ");
    terminal.types("echo gone-$((1+1)); exec sleep 600\r");
    terminal.sees("gone-2");
    terminal.signal(rustix::process::Signal::HUP);
    assert_eq!(terminal.ends(), 129);
    assert!(terminal.is_cooked());
}

#[test]
fn we_can_be_stopped_and_continued_by_the_outer_shell() {
    let place = TestDirectory::new();
    let mut terminal = Terminal::start(&place.data(), ["bash", "--norc", "-i"]);
    terminal.sees("ready$ ");
    terminal.types("$COVE run -- sh -c 'echo up-$((1+1)); sleep 1; echo over-$((1+1))'\r");
    terminal.sees("up-2");
    terminal.types("\x1a");
    terminal.sees("Stopped");
    terminal.types("fg\r");
    terminal.sees("over-2");
    terminal.sees("ready$ ");
    terminal.types("exit\r");
    terminal.ends();
}

#[test]
fn a_keyboard_is_not_read_unless_asked_for() {
    let place = TestDirectory::new();
    let mut terminal = Terminal::cove(&place.data(), ["run", "--", "sh", "-c", "cat; echo read-nothing"]);
    terminal.sees("read-nothing");
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn a_line_typed_to_an_interactive_command_without_a_terminal_arrives() {
    let place = TestDirectory::new();
    let mut terminal = Terminal::cove(&place.data(), ["run", "-i", "--", "sh", "-c", "read x; echo got:$x:"]);
    terminal.types("word\r");
    terminal.sees("got:word:");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_cooked());
}
