from absl.testing import absltest, parameterized

from data.sources import stories


class ReadTest(parameterized.TestCase):
    def test_stories_and_their_questions(self):
        text = ('1 Mary went home.\n2 Where is Mary?\tHome\t1\n3 John slept.\n4 Who slept? \tJohn\t3\n'
                '1 Cats like mice.\n2 What do cats like?\tmice,cats\t1\n')
        first, second = stories.read(text, 'x.txt')
        self.assertEqual([(q.sentences, q.text, q.answer, q.line) for q in first], [
            (['Mary went home.'], 'Where is Mary?', 'home', 2), (['Mary went home.', 'John slept.'], 'Who slept?', 'john', 4)])
        self.assertEqual([(q.sentences, q.answer, q.line) for q in second], [(['Cats like mice.'], 'mice,cats', 6)])

    def test_a_question_mark_will_do_where_no_answer_is_needed(self):
        (question,), = stories.read('1 Mary went home.\r\n\r\n2 Where is Mary?', 'x.txt', answered=False)
        self.assertEqual((question.text, question.answer, question.after), ('Where is Mary?', '', 1))

    def test_bytes_of_a_file(self):
        text = '1 Zoë slept.\n2 Who slept?\tZoë\t1\n'
        for encoding in ('utf-8', 'utf-8-sig'):
            self.assertEqual(stories.read(text.encode(encoding), 'x.txt'), stories.read(text, 'x.txt'))
        with self.assertRaisesRegex(ValueError, 'x.txt is not UTF-8: byte 4 cannot be decoded; give the files of bAbI'):
            stories.read(text.encode('latin-1'), 'x.txt')

    def test_words_have_no_punctuation_and_no_case(self):
        self.assertEqual(stories.words("Mary's well-kept garden, (the  old one)."),
                         ["mary's", 'well-kept', 'garden', 'the', 'old', 'one'])

    @parameterized.parameters(
        ('Mary slept.', "line 1: 'Mary slept.' begins with no number"),
        ('1\tMary slept.', 'begins with no number'),
        ('1 Mary slept.\n3 Where is Mary?\thome\t1', "line 2: .*has the number 3; expected 2, or 1 where a story begins"),
        ('2 Mary slept.', 'has the number 2; expected 1,'),
        ('1 Mary slept.\n2 ...', "line 2: '2 ...' has no words"),
        ('1 Mary slept.\n2 \thome\t1', 'has no words'),
        ('1 Mary slept.\n\n2 Where is Mary?', "line 3: '2 Where is Mary\\?' is a question without an answer; expected a tab"),
        ('1 Mary slept.\n2 Where is Mary?\t\t1', 'is a question without an answer'),
        ('1 Mary slept.', 'x.txt holds no question'),
        ('', 'x.txt holds no question'))
    def test_lines(self, text, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            stories.read(text, 'x.txt')


if __name__ == '__main__':
    absltest.main()
